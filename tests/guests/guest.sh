#!/bin/bash
# Shell: builtins, external programs, pipes, traps, background jobs, timeouts.
now() { date +%s%N; }
echo "stamp start $(now)"
before=$(now); sleep 0.1; echo "wait sleep 100000000 $(($(now) - before))"
before=$(now); read -t 0.1 _ < <(sleep 1); echo "= read $(($? > 128))"; echo "wait read 99000000 $(($(now) - before))"
before=$(now); timeout 0.1 sleep 5; echo "= timeout $?"; echo "wait timeout 100000000 $(($(now) - before))"
trap 'echo "= trap"' USR1
(sleep 0.05; kill -USR1 $$) & wait $!; wait
before=$(now)
for i in 1 2 3; do sleep 0.1 & done; wait
echo "wait jobs 100000000 $(($(now) - before))"
echo "= pipe $(seq 1000 | sort -n | tail -1)"
seconds=$SECONDS; sleep 1.1; echo "= SECONDS $((SECONDS - seconds >= 1))"
echo "stamp end $(now)"
