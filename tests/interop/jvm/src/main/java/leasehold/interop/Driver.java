package leasehold.interop;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import org.redisson.Redisson;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Redisson, driven line by line.
 *
 * <p>In: {@code NUMBER THREAD COMMAND NAME ARGUMENTS…}. Out, as soon as it is done: {@code NUMBER BEGAN ENDED ok VALUE}
 * or {@code NUMBER BEGAN ENDED error WHAT}. THREAD is any word: each has a thread of its own, since to Redisson the
 * thread is the owner, and works off its lines one after the other. BEGAN and ENDED are {@link System#nanoTime} on that
 * thread, just before and after the call. The end of the input ends the program.
 */
public final class Driver {
    private static final String PREFIX = "driven ";

    private final RedissonClient redisson;
    private final PrintStream out = new PrintStream(System.out, true, UTF_8);
    private final Map<String, ExecutorService> threads = new HashMap<>();

    private Driver(RedissonClient redisson) {
        this.redisson = redisson;
    }

    /** Arguments: the server's URL, the watchdog's lease in milliseconds. */
    public static void main(String[] args) throws IOException {
        var config = new Config();
        config.useSingleServer().setAddress(args[0]);
        config.setLockWatchdogTimeout(Long.parseLong(args[1]));
        var driver = new Driver(Redisson.create(config));
        try (var lines = new BufferedReader(new InputStreamReader(System.in, UTF_8))) {
            for (var line = lines.readLine(); line != null; line = lines.readLine()) {
                driver.accept(Arrays.asList(line.split(" ")));
            }
        }
        // At once: threads may be waiting for locks that nobody will release now.
        Runtime.getRuntime().halt(0);
    }

    private void accept(List<String> words) {
        var thread = threads.computeIfAbsent(words.get(1), Driver::executor);
        thread.execute(() -> answer(words.get(0), words.subList(2, words.size())));
    }

    private static ExecutorService executor(String name) {
        return Executors.newSingleThreadExecutor(work -> new Thread(work, PREFIX + name));
    }

    /** The one that works off the lines of that THREAD. */
    static Thread thread(String name) {
        var all = Thread.getAllStackTraces().keySet().stream();
        return all.filter(thread -> thread.getName().equals(PREFIX + name)).findFirst().orElseThrow();
    }

    private void answer(String number, List<String> words) {
        var began = System.nanoTime();
        String outcome;
        try {
            outcome = "ok " + Commands.run(redisson, words);
        } catch (Exception error) {
            outcome = "error " + error.toString().lines().findFirst().orElse("");
        }
        // One call per line, so that the lines of two threads do not mix.
        out.print(number + " " + began + " " + System.nanoTime() + " " + outcome + "\n");
    }
}
