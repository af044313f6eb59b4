/*
 * Lets the PostgreSQL JDBC driver connect through a Unix-domain socket, whose
 * path is socketFactoryArg in the URL: the servers of the tests listen on
 * nothing else, and a TCP port, unlike the socket's directory, would be open
 * to every user of the machine.
 *
 * Java has such sockets as channels only (since version 16); the driver wants
 * a java.net.Socket.  This one has what the driver uses.  Time-outs and TCP's
 * options mean nothing here and are ignored.
 */
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.net.InetAddress;
import java.net.Socket;
import java.net.SocketAddress;
import java.net.UnixDomainSocketAddress;
import java.nio.channels.Channels;
import java.nio.channels.SocketChannel;
import javax.net.SocketFactory;

public class UnixSocketFactory extends SocketFactory {
  private final UnixDomainSocketAddress address;

  public UnixSocketFactory(String path) {
    address = UnixDomainSocketAddress.of(path);
  }

  @Override
  public Socket createSocket() {
    return new UnixSocket(address);
  }

  @Override
  public Socket createSocket(String host, int port) throws IOException {
    return connected();
  }

  @Override
  public Socket createSocket(String host, int port, InetAddress local, int localPort)
      throws IOException {
    return connected();
  }

  @Override
  public Socket createSocket(InetAddress host, int port) throws IOException {
    return connected();
  }

  @Override
  public Socket createSocket(InetAddress host, int port, InetAddress local, int localPort)
      throws IOException {
    return connected();
  }

  private Socket connected() throws IOException {
    Socket socket = createSocket();
    socket.connect(address);
    return socket;
  }
}

class UnixSocket extends Socket {
  private final UnixDomainSocketAddress address;
  private SocketChannel channel;

  UnixSocket(UnixDomainSocketAddress address) {
    this.address = address;
  }

  @Override
  public void connect(SocketAddress ignored) throws IOException {
    channel = SocketChannel.open(address);
  }

  @Override
  public void connect(SocketAddress ignored, int timeout) throws IOException {
    connect(ignored);
  }

  @Override
  public boolean isConnected() {
    return channel != null;
  }

  @Override
  public boolean isClosed() {
    return channel != null && !channel.isOpen();
  }

  @Override
  public InputStream getInputStream() {
    return Channels.newInputStream(channel);
  }

  @Override
  public OutputStream getOutputStream() {
    return Channels.newOutputStream(channel);
  }

  @Override
  public void close() throws IOException {
    if (channel != null) {
      channel.close();
    }
  }

  @Override
  public void setTcpNoDelay(boolean on) {
  }

  @Override
  public void setKeepAlive(boolean on) {
  }

  @Override
  public void setSoTimeout(int milliseconds) {
  }

  @Override
  public int getSoTimeout() {
    return 0;
  }
}
