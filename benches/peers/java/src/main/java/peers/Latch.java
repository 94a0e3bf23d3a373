package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.atomic.AtomicLong;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RedissonClient;

/**
 * A latch for which many wait in several processes: from its last count-down to the last of them that is awake. Whoever started us
 * carries each line to all others.
 */
final class Latch {
    private static final int OTHERS = 3;
    /** So long after its last waiter has begun to wait, a process says that all of them are asleep. */
    private static final long SETTLED_MILLIS = 200;

    private final BlockingQueue<String> lines = new LinkedBlockingQueue<>();
    private final RCountDownLatch latch;
    private final int tasks;
    private final long opens;
    private final long closes;
    private final List<Long> times = new ArrayList<>();

    private Latch(RedissonClient client, Load.Args args) {
        this.latch = client.getCountDownLatch(args.name());
        this.tasks = args.number("--tasks", 0);
        this.opens = System.nanoTime() + args.warmUp();
        this.closes = opens + args.seconds();
        Thread reader = new Thread(() -> Warm.STDIN.lines().forEach(lines::add));
        reader.setDaemon(true);
        reader.start();
    }

    static String latch(RedissonClient client, Load.Args args) throws InterruptedException {
        Latch side = new Latch(client, args);
        boolean first = Boolean.parseBoolean(args.text("--first", "false"));
        for (int turn = 0; !(first ? side.first(turn) : side.other()); turn++) {
            // until the last time
        }
        return "\"times\":" + side.times;
    }

    /** Sets the latch and counts it down. Whether it was the last time. */
    private boolean first(int turn) throws InterruptedException {
        latch.trySetCount(1);
        say("set");
        Waiters waiters = new Waiters();
        for (int other = 0; other < OTHERS; other++) {
            next("ready", "ready");
        }
        Thread.sleep(HandOver.patience(turn));
        boolean last = System.nanoTime() >= closes;
        long down = System.nanoTime();
        latch.countDown();
        long awake = waiters.awake();
        say(last ? "last" : "down");
        for (int other = 0; other < OTHERS; other++) {
            awake = Math.max(awake, Long.parseLong(next("awake", "awake").split(" ")[1]));
        }
        if (System.nanoTime() >= opens) {
            times.add(awake - down);
        }
        return last;
    }

    private boolean other() throws InterruptedException {
        next("set", "set");
        Waiters waiters = new Waiters();
        say("ready");
        long awake = waiters.awake();
        boolean last = next("down", "last").equals("last");
        say("awake " + awake);
        return last;
    }

    /** The waiters of this process. */
    private final class Waiters {
        private final List<Thread> threads = new ArrayList<>();
        /** CLOCK_MONOTONIC, which all processes of the machine share; 0 if there are none. */
        private final AtomicLong last = new AtomicLong();

        Waiters() throws InterruptedException {
            for (int n = 0; n < tasks; n++) {
                Thread thread = new Thread(this::await);
                threads.add(thread);
                thread.start();
            }
            Thread.sleep(SETTLED_MILLIS);
        }

        private void await() {
            try {
                latch.await();
            } catch (InterruptedException stop) {
                throw new IllegalStateException(stop);
            }
            last.accumulateAndGet(System.nanoTime(), Math::max);
        }

        long awake() throws InterruptedException {
            for (Thread thread : threads) {
                thread.join();
            }
            return last.get();
        }
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    /** The next line with one of these first words; others are not for us. */
    private String next(String one, String other) throws InterruptedException {
        while (true) {
            String line = lines.take();
            String word = line.split(" ")[0];
            if (word.equals(one) || word.equals(other)) {
                return line;
            }
        }
    }
}
