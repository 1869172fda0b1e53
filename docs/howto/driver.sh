#!/bin/sh
# The driver in the head's container; stop.sh finds it by its pid.
echo $$ >/tmp/driver.pid
exec python "$(dirname "$0")/tune_job.py"
