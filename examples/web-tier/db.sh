#!/bin/sh
# Starts Redis without persistence and fills it with the shop's items, then says "items loaded".
# The records are a function of the item's number only, so every run serves the same pages.
# Arguments are passed on to redis-server; DB_PORT (6379) and ITEMS (1000) come from the environment.
set -eu
port=${DB_PORT:-6379}
items=${ITEMS:-1000}

records() {
    awk -v items="$items" 'BEGIN {
        split("red green blue solid light spare compact heavy", adjective, " ")
        split("lamp chair bracket kettle ladder clock cable drum", noun, " ")
        for (i = 1; i <= items; i++) {
            a = adjective[i % 8 + 1]; n = noun[int(i / 8) % 8 + 1]
            value = sprintf("{\"name\":\"%s %s no. %d\",\"cents\":%d,\"stock\":%d,", a, n, i, 99 + i * 37 % 9000, i % 50 + 1)
            value = value sprintf("\"text\":\"A %s %s from batch %d, tested & packed by hand.\",", a, n, i % 17)
            value = value sprintf("\"tags\":[\"%s\",\"%s\",\"batch-%d\"],\"reviews\":[", a, n, i % 17)
            for (r = 1; r <= 3; r++)
                value = value sprintf("%s{\"by\":\"customer-%d\",\"stars\":%d,\"text\":\"Bought %d of these; would <em>%s</em> again.\"}", \
                    r > 1 ? "," : "", i * r % 997, (i + r) % 5 + 1, r, r % 2 ? "buy" : "look")
            value = value "]}"
            key = "item:" i
            printf "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", length(key), key, length(value), value
        }
    }'
}

fill() {
    until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.05; done
    records | redis-cli -p "$port" --pipe && echo "items loaded"
}

fill &
exec redis-server --port "$port" --save "" --appendonly no --protected-mode no "$@"
