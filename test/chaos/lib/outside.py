"""The provider outside of the database, in which charges are made.

It knows each charge by a reference and can be asked, which is what a
reconciler relies on: settle() says whether a reference was charged, and if
not makes sure that it never will be.  It is one file per reference, which
comes into being in one step and never changes, so it survives whatever
happens to clients and servers.
"""

import os

CHARGED, VOID = "charged", "void"


class Provider:
    def __init__(self, directory):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)

    def _put(self, reference, state, by):
        """State and author of a reference: these, unless it has others."""
        path = f"{self.directory}/{reference}"
        draft = f"{path}.{by}.draft"
        with open(draft, "w", encoding="ascii") as file:
            file.write(f"{state} {by}")
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        os.unlink(draft)
        with open(path, encoding="ascii") as file:
            return file.read().split()

    def charge(self, reference, by):
        """Whether it is charged now, and by whom."""
        state, author = self._put(reference, CHARGED, by)
        return state == CHARGED, author

    def settle(self, reference, by):
        """Whether it was charged; if not, it never will be."""
        return self._put(reference, VOID, by)[0] == CHARGED

    def charges(self):
        """The references that were charged."""
        charged = []
        for name in os.listdir(self.directory):
            if not name.endswith(".draft"):
                with open(f"{self.directory}/{name}", encoding="ascii") as file:
                    if file.read().startswith(CHARGED):
                        charged.append(name)
        return charged
