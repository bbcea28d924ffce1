#!/bin/sh
# The platform's start command, run as `sh /home/mind/run.sh`. tini reaps what the engine leaves behind, also where it is not process 1.
exec tini -s -- /opt/modelarts-engine/bin/supervise
