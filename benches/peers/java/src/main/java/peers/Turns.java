package peers;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.function.IntFunction;
import org.redisson.api.RedissonClient;

/** Threads that lock and unlock as often as they can. */
final class Turns implements Runnable {
    private final Pair lock;
    /** How many may have it at once. */
    private final int most;
    private final AtomicInteger holders;
    private final long opens;
    private final long closes;
    private final long work;

    private long allTurns;
    private long errors;
    /** Locked while others had it, as many as may. */
    private long violations;
    /** From lock() called to unlock() returned, of the turns that ended within the window. */
    private long[] times = new long[1024];
    private int turns;

    private Turns(Pair lock, AtomicInteger holders, long opens, Load.Args args) {
        this.lock = lock;
        this.holders = holders;
        this.most = args.kind().equals("permits") || args.kind().equals("counter") ? Pair.PERMITS : 1;
        this.opens = opens;
        this.closes = opens + args.seconds();
        this.work = args.work();
    }

    /** Each thread has a name of its own. */
    static String ownNames(RedissonClient client, Load.Args args) throws InterruptedException {
        long opens = System.nanoTime() + args.warmUp();
        return run(args, n -> new Turns(Pair.of(client, args, args.name() + "-" + n), new AtomicInteger(), opens, args));
    }

    /** All want the same. Readers have it together, so each counts only itself. */
    static String oneName(RedissonClient client, Load.Args args) throws InterruptedException {
        long opens = System.nanoTime() + args.warmUp();
        AtomicInteger all = new AtomicInteger();
        boolean together = args.kind().equals("read");
        return run(args, n -> {
            AtomicInteger holders = together ? new AtomicInteger() : all;
            return new Turns(Pair.of(client, args, args.name()), holders, opens, args);
        });
    }

    private static String run(Load.Args args, IntFunction<Turns> task) throws InterruptedException {
        List<Turns> tasks = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < args.tasks(); n++) {
            tasks.add(task.apply(n));
            threads.add(new Thread(tasks.get(n)));
        }
        threads.forEach(Thread::start);
        for (Thread thread : threads) {
            thread.join();
        }
        return report(tasks, args);
    }

    @Override
    public void run() {
        while (true) {
            long begun = System.nanoTime();
            if (begun >= closes) {
                return;
            }
            try {
                boolean alone = turn();
                count(begun, alone);
            } catch (RuntimeException error) {
                failed(error);
            } catch (InterruptedException stop) {
                throw new IllegalStateException(stop);
            }
        }
    }

    /** Whether no more others had it meanwhile than may. */
    private boolean turn() throws InterruptedException {
        lock.lock();
        boolean alone = holders.incrementAndGet() <= most;
        spin(work);
        holders.decrementAndGet();
        lock.unlock();
        return alone;
    }

    /** Work that is equally long in every language; their timers are not. */
    private static void spin(long work) {
        for (long begun = System.nanoTime(); System.nanoTime() - begun < work; ) {
            Thread.onSpinWait();
        }
    }

    private void count(long begun, boolean alone) {
        long now = System.nanoTime();
        allTurns++;
        violations += alone ? 0 : 1;
        if (now >= opens && now < closes) {
            if (turns == times.length) {
                times = Arrays.copyOf(times, turns * 2);
            }
            times[turns++] = now - begun;
        }
    }

    private void failed(RuntimeException error) {
        if (errors++ == 0) {
            System.err.println(error);
        }
        try {
            Thread.sleep(1); // not the busy loop that an error at once would make
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
    }

    private static String report(List<Turns> tasks, Load.Args args) {
        long[] times = tasks.stream().flatMapToLong(task -> Arrays.stream(task.times, 0, task.turns)).sorted().toArray();
        return String.format("\"turns\":%d,\"all_turns\":%d,\"errors\":%d,\"violations\":%d,\"least\":%d,\"most\":%d,"
                + "\"seconds\":%s,\"p50\":%d,\"p99\":%d",
            times.length,
            tasks.stream().mapToLong(task -> task.allTurns).sum(),
            tasks.stream().mapToLong(task -> task.errors).sum(),
            tasks.stream().mapToLong(task -> task.violations).sum(),
            tasks.stream().mapToInt(task -> task.turns).min().orElse(0),
            tasks.stream().mapToInt(task -> task.turns).max().orElse(0),
            args.seconds() / 1e9,
            quantile(times, 50),
            quantile(times, 99));
    }

    private static long quantile(long[] sorted, int percent) {
        return sorted.length == 0 ? 0 : sorted[(int) ((long) sorted.length * percent / 100)];
    }
}
