# Build, install and test the extension with PGXS.
#
#   make && make install          for the server whose pg_config is first on
#                                 the PATH; PG_CONFIG=/path/to/pg_config for
#                                 another one
#   make installcheck             the regression and isolation tests against
#                                 the running server of PGHOST and PGPORT, and
#                                 the TAP tests, which start servers themselves
#   make installcheck REGRESS=claim ISOLATION= TAP_TESTS=
#                                 one of them (test/README.md)
#   make dist                     the archive of a release
#
# script/test does all of this in a throw-away installation and cluster.

EXTENSION = idempotency
MODULE_big = idempotency
PGFILEDESC = "idempotency - idempotency keys inside PostgreSQL"

# The directory of this file, which a VPATH build is not started from.
here := $(dir $(firstword $(MAKEFILE_LIST)))
names = $(patsubst $(here)$(1)%$(2),%,$(sort $(wildcard $(here)$(1)*$(2))))

# The version of a release, which may change the library alone; that of the SQL is
# written in the control file and nowhere else.
DISTVERSION := $(shell sed -n '/^   "version"/s/.*: *"\(.*\)".*/\1/p' $(here)META.json)

DATA = $(notdir $(wildcard $(here)$(EXTENSION)--*.sql))
OBJS = idempotency.o $(addprefix src/,$(addsuffix .o,$(call names,src/,.c)))
HEADER_FILES = $(wildcard $(here)src/*.h)

# PostgreSQL's own headers are full of unused parameters, and so is any function
# that is called from SQL without arguments.
PG_CFLAGS = -Wall -Wextra -Wno-unused-parameter

REGRESS = $(call names,sql/,.sql)
REGRESS_OPTS = --load-extension=$(EXTENSION)

# With a directory of its own, so that a specification and a regression test
# of the same name do not share an expected/ file.
ISOLATION = $(call names,test/isolation/specs/,.spec)
ISOLATION_OPTS = --inputdir=$(here)test/isolation --load-extension=$(EXTENSION)

PROVE_TESTS = $(addprefix test/t/,$(addsuffix .pl,$(call names,test/t/,.pl)))

# The TAP tests run initdb, which root may not, and use a Perl module that a
# server does not need.  TAP_TESTS=1 on the command line insists.
TAP_TESTS := $(shell test "$$(id -u)" != 0 && perl -MIPC::Run -e 'print 1' 2>/dev/null)

EXTRA_CLEAN = $(EXTENSION)-$(DISTVERSION).zip

PG_CONFIG ?= pg_config
PGXS := $(shell $(PG_CONFIG) --pgxs)
include $(PGXS)

# A header changes what every object means; there are few of them.
$(OBJS) $(OBJS:.o=.bc): $(HEADER_FILES)

# A VPATH build starts in an empty directory.
ifeq ($(wildcard src/.),)
$(shell mkdir src)
endif

ifeq ($(origin TAP_TESTS)$(TAP_TESTS),file)
installcheck: without-tap-tests
without-tap-tests:
	@echo "Leaving out the TAP tests: they want a user other than root and Perl's IPC::Run."
endif

dist:
	git archive --format=zip --prefix=$(EXTENSION)-$(DISTVERSION)/ \
		--output=$(EXTENSION)-$(DISTVERSION).zip HEAD

.PHONY: dist without-tap-tests
