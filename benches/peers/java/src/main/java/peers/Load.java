package peers;

import java.util.HashMap;
import java.util.Map;
import org.redisson.Redisson;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * The load of scripts/bench-peers for Redisson. {@code Load SECTION --url URL …} prints one line of JSON with numbers only;
 * ../README.md of the project has the sections, which the programs in other languages share.
 */
final class Load {
    /** The command line. */
    record Args(String section, Map<String, String> options) {
        String text(String option, String otherwise) {
            return options.getOrDefault(option, otherwise);
        }

        int number(String option, int otherwise) {
            return Integer.parseInt(text(option, Integer.toString(otherwise)));
        }

        long nanos(String option, double otherwise) {
            return (long) (Double.parseDouble(text(option, Double.toString(otherwise))) * 1e9);
        }

        int tasks() {
            return number("--tasks", 1);
        }

        /** {@code lock}, {@code read}, {@code write}, {@code fair}, {@code permits}, {@code counter} or {@code latch}. */
        String kind() {
            return text("--kind", "lock");
        }

        String name() {
            return text("--name", "peers");
        }

        long seconds() {
            return nanos("--seconds", 1);
        }

        long warmUp() {
            return nanos("--warm-up", 0);
        }

        long work() {
            return number("--work-ms", 0) * 1_000_000L;
        }
    }

    public static void main(String[] words) throws Exception {
        // Threads of Redisson would keep the process of which another thread has failed.
        Thread.setDefaultUncaughtExceptionHandler((thread, error) -> {
            System.err.println(error);
            Runtime.getRuntime().halt(1);
        });
        Args args = parse(words);
        if (args.section().equals("version")) {
            String version = Redisson.class.getPackage().getImplementationVersion();
            System.out.println("Redisson " + version + ", Java " + Runtime.version());
            return;
        }
        RedissonClient client = connect(args);
        Warm.up(client, args);
        System.out.println("{" + section(client, args) + "}");
        System.out.flush();
        // Locks that are still held are the server's to forget, as is whatever else would keep the process.
        Runtime.getRuntime().halt(0);
    }

    private static Args parse(String[] words) {
        Map<String, String> options = new HashMap<>();
        for (int i = 1; i < words.length; i += 2) {
            options.put(words[i], words[i + 1]);
        }
        return new Args(words[0], options);
    }

    /** Default settings, and connections for all threads. */
    private static RedissonClient connect(Args args) {
        int threads = args.section().equals("held") ? 1 : args.tasks();
        Config config = new Config();
        config.useSingleServer().setAddress(args.text("--url", null)).setConnectionPoolSize(Math.max(64, threads));
        return Redisson.create(config);
    }

    static RLock lock(RedissonClient client, Args args, String name) {
        return switch (args.kind()) {
            case "lock" -> client.getLock(name);
            case "read" -> client.getReadWriteLock(name).readLock();
            case "write" -> client.getReadWriteLock(name).writeLock();
            case "fair" -> client.getFairLock(name);
            default -> throw new IllegalArgumentException("no kind " + args.kind());
        };
    }

    private static String section(RedissonClient client, Args args) throws Exception {
        return switch (args.section()) {
            case "own-names" -> Turns.ownNames(client, args);
            case "one-name" -> Turns.oneName(client, args);
            case "hand-over" -> HandOver.inside(client, args);
            case "half" -> HandOver.half(client, args);
            case "latch" -> Latch.latch(client, args);
            case "held" -> Held.held(client, args);
            default -> throw new IllegalArgumentException("no section " + args.section());
        };
    }
}
