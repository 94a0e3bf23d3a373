package peers;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;

/** Memory for each held lock. */
final class Held {
    private static final long PAGE = 4096;

    private Held() {}

    /** Says {@code held} when all are, and keeps them for the seconds asked for, so that they are renewed meanwhile. */
    static String held(RedissonClient client, Load.Args args) throws IOException, InterruptedException {
        RLock warm = client.getLock("warm");
        warm.lock();
        warm.unlock();
        long resident = resident();
        long heap = heap();
        List<RLock> locks = new ArrayList<>();
        for (int n = 0; n < args.tasks(); n++) {
            locks.add(client.getLock(String.format("%s:%06d", args.name(), n)));
            locks.get(n).lock();
        }
        System.out.println("held");
        System.out.flush();
        Thread.sleep(args.seconds() / 1_000_000);
        long each = (resident() - resident) / locks.size();
        return "\"bytes\":" + each + ",\"heap\":" + (heap() - heap) / locks.size();
    }

    /** Resident memory of this process in bytes, without garbage as far as the JVM gives it back: it does so bit by bit. */
    private static long resident() throws IOException, InterruptedException {
        long least = Long.MAX_VALUE;
        for (int tries = 0; tries < 10; tries++) {
            System.gc();
            Thread.sleep(100);
            String pages = Files.readString(Path.of("/proc/self/statm")).split(" ")[1];
            least = Math.min(least, Long.parseLong(pages) * PAGE);
        }
        return least;
    }

    private static long heap() {
        return Runtime.getRuntime().totalMemory() - Runtime.getRuntime().freeMemory();
    }
}
