package leasehold.interop;

import static java.util.concurrent.TimeUnit.MILLISECONDS;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.List;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RFencedLock;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.client.codec.StringCodec;

/** What the driver can be told, mostly Redisson's calls by their names. Times in ms; a lease of -1 is the watchdog's. */
final class Commands {
    private Commands() {}

    /** {@code COMMAND[:KIND] NAME ARGUMENTS…}, on the thread that is to own what is locked. */
    static Object run(RedissonClient redisson, List<String> words) throws IOException, InterruptedException {
        var command = words.get(0).split(":");
        if (command[0].equals("latch")) {
            return latch(redisson.getCountDownLatch(words.get(1)), command[1], words);
        }
        if (command[0].equals("permits")) {
            return permits(redisson.getPermitExpirableSemaphore(words.get(1)), command[1], words);
        }
        if (command[0].equals("counter")) {
            return counter(redisson.getSemaphore(words.get(1)), command[1], words);
        }
        var lock = lock(redisson, command.length > 1 ? command[1] : "plain", words.get(1));
        switch (command[0]) {
            case "lock" -> lock.lock(number(words, 2), MILLISECONDS);
            case "unlock" -> lock.unlock();
            default -> {
                return ask(redisson, lock, command[0], words);
            }
        }
        return "done";
    }

    /** {@code latch:COMMAND NAME ARGUMENTS…}. */
    private static Object latch(RCountDownLatch latch, String command, List<String> words) throws InterruptedException {
        switch (command) {
            case "countDown" -> latch.countDown();
            case "await" -> latch.await();
            case "trySetCount" -> {
                return latch.trySetCount(number(words, 2));
            }
            case "awaitFor" -> {
                return latch.await(number(words, 2), MILLISECONDS);
            }
            case "count" -> {
                return latch.getCount();
            }
            case "delete" -> {
                return latch.delete();
            }
            default -> throw new IllegalArgumentException("no such command: " + words);
        }
        return "done";
    }

    /** {@code permits:COMMAND NAME ARGUMENTS…}. Ids have commas between them. */
    private static Object permits(RPermitExpirableSemaphore permits, String command, List<String> words)
            throws InterruptedException {
        switch (command) {
            case "release" -> permits.release(List.of(words.get(2).split(",")));
            case "addPermits" -> permits.addPermits((int) number(words, 2));
            case "acquire" -> {
                return String.join(",", permits.acquire((int) number(words, 2), number(words, 3), MILLISECONDS));
            }
            case "trySetPermits" -> {
                return permits.trySetPermits((int) number(words, 2));
            }
            case "available" -> {
                return permits.availablePermits();
            }
            default -> throw new IllegalArgumentException("no such command: " + words);
        }
        return "done";
    }

    /** {@code counter:COMMAND NAME ARGUMENTS…}: a semaphore without leases. */
    private static Object counter(RSemaphore counter, String command, List<String> words) throws InterruptedException {
        switch (command) {
            case "release" -> counter.release((int) number(words, 2));
            case "addPermits" -> counter.addPermits((int) number(words, 2));
            case "acquire" -> counter.acquire((int) number(words, 2));
            case "tryAcquire" -> {
                return counter.tryAcquire((int) number(words, 2), Duration.ofMillis(number(words, 3)));
            }
            case "drain" -> {
                return counter.drainPermits();
            }
            case "trySetPermits" -> {
                return counter.trySetPermits((int) number(words, 2));
            }
            case "available" -> {
                return counter.availablePermits();
            }
            default -> throw new IllegalArgumentException("no such command: " + words);
        }
        return "done";
    }

    private static RLock lock(RedissonClient redisson, String kind, String name) {
        return switch (kind) {
            case "plain" -> redisson.getLock(name);
            case "read" -> redisson.getReadWriteLock(name).readLock();
            case "write" -> redisson.getReadWriteLock(name).writeLock();
            case "fair" -> redisson.getFairLock(name);
            case "fenced" -> redisson.getFencedLock(name);
            default -> throw new IllegalArgumentException("no such kind: " + kind);
        };
    }

    private static Object ask(RedissonClient redisson, RLock lock, String command, List<String> words)
            throws IOException, InterruptedException {
        return switch (command) {
            case "tryLock" -> lock.tryLock(number(words, 2), number(words, 3), MILLISECONDS);
            case "lockAndGetToken" -> ((RFencedLock) lock).lockAndGetToken();
            case "token" -> ((RFencedLock) lock).getToken();
            case "forceUnlock" -> lock.forceUnlock();
            case "isLocked" -> lock.isLocked();
            case "isHeldByCurrentThread" -> lock.isHeldByCurrentThread();
            case "holdCount" -> lock.getHoldCount();
            case "remainTimeToLive" -> lock.remainTimeToLive();
            case "holders" -> redisson.getMap(lock.getName(), StringCodec.INSTANCE).readAllMap();
            case "owner" -> redisson.getId() + ":" + Thread.currentThread().getId();
            case "sleeps" -> Driver.thread(words.get(2)).getState() == Thread.State.TIMED_WAITING;
            case "version" -> RedissonClient.class.getPackage().getImplementationVersion();
            case "turns" -> turns(lock, words);
            default -> throw new IllegalArgumentException("no such command: " + words);
        };
    }

    /**
     * {@code turns NAME FROM UNTIL WORK COUNTER LOG}: between two moments of {@link System#nanoTime}, takes the lock
     * again and again, works for some milliseconds, and counts each turn in a file that all contenders share. Then writes
     * a line for each turn: from when until when the lock was certainly held.
     */
    private static int turns(RLock lock, List<String> words) throws IOException, InterruptedException {
        long from = number(words, 2), until = number(words, 3), work = number(words, 4);
        Path counter = Path.of(words.get(5)), log = Path.of(words.get(6));
        Thread.sleep(Math.max(0, from - System.nanoTime()) / 1_000_000);
        var turns = new StringBuilder();
        var count = 0;
        while (System.nanoTime() < until) {
            lock.lock();
            var granted = System.nanoTime();
            try {
                count(counter, work);
            } finally {
                turns.append(granted).append(' ').append(System.nanoTime()).append('\n');
                lock.unlock();
            }
            count++;
        }
        Files.writeString(log, turns);
        return count;
    }

    /** Counts one up, slowly: two at a time would be counted as one. */
    private static void count(Path counter, long work) throws IOException, InterruptedException {
        var counted = Long.parseLong(Files.readString(counter));
        if (work > 0) {
            Thread.sleep(work);
        }
        Files.writeString(counter, Long.toString(counted + 1));
    }

    private static long number(List<String> words, int at) {
        return Long.parseLong(words.get(at));
    }
}
