"""A throw-away RabbitMQ node: its own name, ports, data and port mapper, all of
it gone when the run ends, and no other node of the machine touched.
"""

import os
import shutil

from stage import Program, free_ports

SERVER = "/usr/lib/rabbitmq/bin/rabbitmq-server"  # the one on the PATH wants to be root


class Broker(Program):
    def __init__(self, stage):
        port, distribution, mapper = free_ports(3)
        place = stage.directory / "rabbitmq"
        place.mkdir()
        (place / "enabled_plugins").write_text("[].\n")
        (place / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
        env = {
            "HOME": str(place),  # for its cookie
            "ERL_EPMD_PORT": str(mapper), "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"shipping{os.getpid()}@localhost",
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": str(place / "none"),
            "RABBITMQ_CONFIG_FILE": str(place / "rabbitmq"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(place / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(place / "data"),
            "RABBITMQ_LOG_BASE": str(place / "log"),
            # The start script becomes the node, instead of staying its parent.
            "RABBITMQ_ALLOW_INPUT": "1", "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-noinput",
            "RABBITMQ_PID_FILE": str(place / "pid"),
        }
        # In the foreground, or the node would start one that outlives it.
        self.mapper = Program(stage, "epmd", [shutil.which("epmd"), "-port", mapper,
                                              "-address", "127.0.0.1"], env, mapper)
        super().__init__(stage, "rabbitmq", [SERVER], env, port, group=True)

    def start(self):
        self.mapper.start()
        super().start()
