// Node.js: timers, sockets, worker threads, child processes.
const net = require("net"), { Worker } = require("worker_threads"), { execFileSync } = require("child_process");
const fs = require("fs");
const say = (...words) => fs.writeSync(1, words.join(" ") + "\n");
const now = () => process.hrtime.bigint();
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
async function wait(name, ms, f) {
    const before = now(), cpu = process.cpuUsage();
    const result = await f();
    const took = now() - before, own = process.cpuUsage(cpu);
    // libuv's clock has whole milliseconds: a timer may be one early. It may be late by what the program does itself.
    say("wait", name, (ms - 1) * 1e6, took, (own.user + own.system) * 1000);
    return result;
}
// CPU time of the whole process for each wait, the best of rounds.
async function idle(waits) {
    let best = Infinity;
    for (let round = 0; round < 4; round++) {
        const before = process.cpuUsage();
        for (let i = 0; i < waits; i++) await sleep(2);
        const used = process.cpuUsage(before);
        best = Math.min(best, used.user + used.system);
    }
    say("value cpu_ns_per_wait", Math.round(best * 1000 / waits));
}
(async () => {
    if (process.argv[2] == "idle") return idle(+process.argv[3]);
    say("stamp start", now());
    await wait("timeout", 50, () => sleep(50));
    await wait("interval", 60, () => new Promise((resolve) => {
        let n = 0;
        const t = setInterval(() => ++n == 3 && (clearInterval(t), resolve()), 20);
    }));
    const server = net.createServer((s) => s.on("data", (d) => setTimeout(() => s.end(d), 40)));
    await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
    const talk = () => new Promise((resolve) => {
        const s = net.connect(server.address().port, "127.0.0.1", () => s.write("hello"));
        s.on("data", (d) => say("= echo", d.toString()));
        s.on("close", resolve);
    });
    // The first time compiles it all.
    await talk();
    await wait("socket", 40, talk);
    server.close();
    await wait("atomics", 50, () => Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 50));
    const worker = new Worker("const {parentPort} = require('worker_threads'); setTimeout(() => parentPort.postMessage(process.hrtime.bigint()), 40)", { eval: true });
    const there = await new Promise((resolve) => worker.on("message", resolve));
    say("= worker", there <= now());
    say("= child", execFileSync("sh", ["-c", "sleep 0.02; echo child"]).toString().trim());
    say("near clocks", Date.now() * 1e6, Math.round((performance.timeOrigin + performance.now()) * 1e6));
    say("stamp end", now());
})();
