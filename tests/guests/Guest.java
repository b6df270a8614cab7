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

    static void await(String name, long ms, Part part) throws Exception {
        long before = System.nanoTime();
        part.run();
        say("wait " + name + " " + ms * 1000000 + " " + (System.nanoTime() - before));
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
        // Once for the class loader, so that the second one arrives when it says.
        say("warm " + System.nanoTime());
        say("stamp start " + System.nanoTime());
        await("sleep", 50, () -> Thread.sleep(50));
        Object monitor = new Object();
        await("monitor", 50, () -> {
            synchronized (monitor) {
                monitor.wait(50);
            }
        });
        LockSupport.parkNanos(50000000);
        await("latch", 50, () -> say("= latch " + new CountDownLatch(1).await(50, TimeUnit.MILLISECONDS)));
        var pool = Executors.newScheduledThreadPool(2);
        await("schedule", 50, () -> say("= schedule " + pool.schedule(() -> 7, 50, TimeUnit.MILLISECONDS).get()));
        pool.shutdown();
        // The echo's socket stays open until the other side has run into its timeout.
        var end = new CountDownLatch(1);
        try (var server = new ServerSocket(0)) {
            var echo = new Thread(() -> {
                try (Socket s = server.accept()) {
                    int c = s.getInputStream().read();
                    Thread.sleep(40);
                    s.getOutputStream().write(c + 1);
                    end.await();
                } catch (Exception e) {
                    say("= server " + e);
                }
            });
            echo.start();
            try (var s = new Socket("127.0.0.1", server.getLocalPort())) {
                await("socket", 40, () -> {
                    s.getOutputStream().write(41);
                    say("= echo " + s.getInputStream().read());
                });
                s.setSoTimeout(50);
                await("so_timeout", 50, () -> {
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
        say("= child " + new ProcessBuilder("sh", "-c", "sleep 0.02; exit 6").start().waitFor());
        System.gc();
        say("stamp end " + System.nanoTime());
    }
}
