// The JVM: sleeps, waits, executors, sockets, child processes.
import java.io.File;
import java.net.ServerSocket;
import java.net.Socket;
import java.net.SocketTimeoutException;
import java.nio.file.Files;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.LockSupport;

public class Guest {
    interface Part {
        void run() throws Exception;
    }

    static synchronized void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** Waits of `ms`, each told by a line that begins with `word`. */
    record Waits(String word, int ms) {
        void await(String name, Part part) throws Exception {
            long before = System.nanoTime();
            part.run();
            say(word + " " + name + " " + ms * 1000000L + " " + (System.nanoTime() - before));
        }

        void run() throws Exception {
            await("sleep", () -> Thread.sleep(ms));
            Object monitor = new Object();
            await("monitor", () -> {
                synchronized (monitor) {
                    monitor.wait(ms);
                }
            });
            // It may end early, so it is not timed.
            LockSupport.parkNanos(ms * 1000000L);
            await("latch", () -> say("= latch " + new CountDownLatch(1).await(ms, TimeUnit.MILLISECONDS)));
            var pool = Executors.newScheduledThreadPool(2);
            await("schedule", () -> say("= schedule " + pool.schedule(() -> 7, ms, TimeUnit.MILLISECONDS).get()));
            pool.shutdown();
            sockets();
        }

        void sockets() throws Exception {
            // The echo's socket stays open until the other side has run into its timeout.
            var end = new CountDownLatch(1);
            try (var server = new ServerSocket(0)) {
                var echo = new Thread(() -> {
                    try (Socket s = server.accept()) {
                        int c = s.getInputStream().read();
                        Thread.sleep(ms);
                        s.getOutputStream().write(c + 1);
                        end.await();
                    } catch (Exception e) {
                        say("= server " + e);
                    }
                });
                echo.start();
                try (var s = new Socket("127.0.0.1", server.getLocalPort())) {
                    await("socket", () -> {
                        s.getOutputStream().write(41);
                        say("= echo " + s.getInputStream().read());
                    });
                    s.setSoTimeout(ms);
                    await("so_timeout", () -> {
                        try {
                            s.getInputStream().read();
                        } catch (SocketTimeoutException e) {
                            say("= socket timed out");
                        }
                    });
                }
                end.countDown();
                echo.join();
            }
        }
    }

    /** CPU time of all threads, ns: the JVM's own count of it has ticks of 10 ms. */
    static long used() throws Exception {
        long sum = 0;
        for (File thread : new File("/proc/self/task").listFiles()) {
            sum += Long.parseLong(Files.readString(thread.toPath().resolve("schedstat")).split(" ")[0]);
        }
        return sum;
    }

    /** CPU time of the whole process for each wait, the best of rounds; less what a look takes. */
    static void idle(int waits) throws Exception {
        long best = Long.MAX_VALUE;
        for (int round = 0; round < 4; round++) {
            long first = used(), before = used();
            for (int i = 0; i < waits; i++) Thread.sleep(2);
            best = Math.min(best, used() - before - (before - first));
        }
        say("value cpu_ns_per_wait " + best / waits);
    }

    public static void main(String[] args) throws Exception {
        if (args.length > 1 && args[0].equals("idle")) {
            idle(Integer.parseInt(args[1]));
            return;
        }
        // Once for the class loader: what is judged is how long waits take, not how long classes take to load.
        new Waits("warm", 1).run();
        say("stamp start " + System.nanoTime());
        new Waits("wait", 50).run();
        say("= child " + new ProcessBuilder("sh", "-c", "sleep 0.02; exit 6").start().waitFor());
        System.gc();
        say("stamp end " + System.nanoTime());
    }
}
