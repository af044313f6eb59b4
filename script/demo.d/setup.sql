-- What the demo needs besides the shop's own schema: an operator whom pg_cron
-- runs the sweep for.  He has no rights on the shop's tables.
CREATE ROLE sweeper LOGIN;
SELECT idem_grant('sweeper', 'operator');
GRANT USAGE ON SCHEMA cron TO sweeper;
