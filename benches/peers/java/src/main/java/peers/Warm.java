package peers;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import org.redisson.api.RedissonClient;

/** Lets the JVM compile Redisson before anything counts: threads with names of their own, and threads that share one. */
final class Warm {
    /** The only one who reads from it, so that nothing is lost in buffers. */
    static final BufferedReader STDIN = new BufferedReader(new InputStreamReader(System.in));

    private static final int THREADS = 8;

    private Warm() {}

    /** Says {@code warm} when it is over, and waits for a line, so that the commands sent so far need not be counted. */
    static void up(RedissonClient client, Load.Args args) throws InterruptedException, IOException {
        long ends = System.nanoTime() + args.nanos("--jit", 0);
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < THREADS; n++) {
            threads.add(pairs(Pair.of(client, args, args.name() + "-warm-" + n), ends));
            threads.add(pairs(Pair.of(client, args, args.name() + "-warm"), ends));
        }
        for (Thread thread : threads) {
            thread.join();
        }
        System.out.println("warm");
        System.out.flush();
        STDIN.readLine();
    }

    private static Thread pairs(Pair pair, long ends) {
        Thread thread = new Thread(() -> {
            try {
                while (System.nanoTime() < ends) {
                    pair.lock();
                    pair.unlock();
                }
            } catch (InterruptedException stop) {
                throw new IllegalStateException(stop);
            }
        });
        thread.start();
        return thread;
    }
}
