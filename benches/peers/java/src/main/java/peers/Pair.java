package peers;

import java.util.concurrent.TimeUnit;
import org.redisson.api.RCountDownLatch;
import org.redisson.api.RLock;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RSemaphore;
import org.redisson.api.RedissonClient;

/** What a thread acquires and releases again and again. One for each thread. */
interface Pair {
    /** So many permits a semaphore has. */
    int PERMITS = 4;
    /** The lease of a permit: as long as the watchdog's of a lock. */
    long LEASE_SECONDS = 30;

    void lock() throws InterruptedException;

    void unlock() throws InterruptedException;

    static Pair of(RedissonClient client, Load.Args args, String name) {
        return switch (args.kind()) {
            case "permits" -> ofPermits(client.getPermitExpirableSemaphore(name));
            case "counter" -> ofCounter(client.getSemaphore(name));
            case "latch" -> ofLatch(client.getCountDownLatch(name));
            default -> ofLock(Load.lock(client, args, name));
        };
    }

    private static Pair ofLock(RLock lock) {
        return new Pair() {
            @Override
            public void lock() {
                lock.lock();
            }

            @Override
            public void unlock() {
                lock.unlock();
            }
        };
    }

    private static Pair ofPermits(RPermitExpirableSemaphore semaphore) {
        semaphore.trySetPermits(PERMITS);
        return new Pair() {
            private String permit;

            @Override
            public void lock() throws InterruptedException {
                permit = semaphore.acquire(LEASE_SECONDS, TimeUnit.SECONDS);
            }

            @Override
            public void unlock() {
                semaphore.release(permit);
            }
        };
    }

    private static Pair ofCounter(RSemaphore semaphore) {
        semaphore.trySetPermits(PERMITS);
        return new Pair() {
            @Override
            public void lock() throws InterruptedException {
                semaphore.acquire();
            }

            @Override
            public void unlock() {
                semaphore.release();
            }
        };
    }

    /** To warm up. Each that sets it counts it down, so nobody waits for ever. */
    private static Pair ofLatch(RCountDownLatch latch) {
        return new Pair() {
            @Override
            public void lock() {
                latch.trySetCount(1);
            }

            @Override
            public void unlock() throws InterruptedException {
                latch.countDown();
                latch.await();
            }
        };
    }
}
