package peers;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Consumer;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/**
 * From unlock() called to lock() returned by one who was already waiting. Two sides take turns; neither asks again before
 * the other has it, so that a waiter who is asleep when the lock is released is not passed over.
 */
final class HandOver {
    private final RLock lock;
    private final BlockingQueue<String> inbox;
    private final Consumer<String> outbox;
    private final long opens;
    private final long closes;
    private final List<Long> times = new ArrayList<>();

    private HandOver(RedissonClient client, Load.Args args, BlockingQueue<String> inbox, Consumer<String> outbox) {
        this.lock = client.getLock(args.name());
        this.inbox = inbox;
        this.outbox = outbox;
        this.opens = System.nanoTime() + args.warmUp();
        this.closes = opens + args.seconds();
    }

    /** Both sides in this process. */
    static String inside(RedissonClient client, Load.Args args) throws InterruptedException {
        BlockingQueue<String> toOne = new LinkedBlockingQueue<>();
        BlockingQueue<String> toOther = new LinkedBlockingQueue<>();
        HandOver one = new HandOver(client, args, toOne, toOther::add);
        HandOver other = new HandOver(client, args, toOther, toOne::add);
        Thread first = new Thread(() -> one.run(true));
        first.start();
        other.run(false);
        first.join();
        one.times.addAll(other.times);
        return report(one.times);
    }

    /** One side; whoever started us carries the lines to the other. */
    static String half(RedissonClient client, Load.Args args) {
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> Warm.STDIN.lines().forEach(lines::add));
        reader.setDaemon(true);
        reader.start();
        HandOver side = new HandOver(client, args, lines, HandOver::say);
        side.run(Boolean.parseBoolean(args.text("--first", "false")));
        return report(side.times);
    }

    private static void say(String line) {
        System.out.println(line);
        System.out.flush();
    }

    private static String report(List<Long> times) {
        return "\"times\":" + times;
    }

    private void run(boolean first) {
        if (first) {
            lock.lock();
            outbox.accept("had");
        } else {
            hear("had");
        }
        boolean last = false;
        for (int turn = 0; !last; turn++) {
            last = (turn % 2 == 0) == first ? give(turn) : take();
        }
    }

    /** The holder: waits until the other asks, and a while. Whether it was the last time. */
    private boolean give(int turn) {
        hear("ask");
        sleep(patience(turn));
        String word = System.nanoTime() < closes ? "left" : "last";
        long left = System.nanoTime();
        lock.unlock();
        outbox.accept(word + " " + left);
        hear("had");
        return word.equals("last");
    }

    /** The waiter: notes how long it took from the release on; whether it was the last time. */
    private boolean take() {
        outbox.accept("ask");
        lock.lock();
        long had = System.nanoTime(); // CLOCK_MONOTONIC, which all processes of the machine share
        outbox.accept("had");
        String[] release = next().split(" ");
        if (System.nanoTime() >= opens) {
            times.add(had - Long.parseLong(release[1]));
        }
        if (release[0].equals("last")) {
            lock.unlock();
        }
        return release[0].equals("last");
    }

    /** From 3 to 103 ms, evenly spread: the release must not keep step with somebody's polling. */
    static long patience(int turn) {
        return 3 + (long) (turn * 0.61803398875 % 1 * 100);
    }

    private void hear(String wanted) {
        String line = next();
        if (!line.equals(wanted)) {
            throw new IllegalStateException(line + " instead of " + wanted);
        }
    }

    private String next() {
        try {
            return inbox.take();
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
    }

    private static void sleep(long millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
    }
}
