package io.tidepool.stores;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;

/**
 * Reads commands from its input, a line each, and answers each with a line. Lines are words and
 * numbers: neither side needs a library for them, and the class path is the site's.
 *
 * <p>It ends when its input does, whatever is under way: the controller has gone.
 */
public final class Stores {

    private static final int BAD_USAGE = 2;

    private Stores() {
    }

    /** Runs until the input ends. */
    public static void main(String[] arguments) throws InterruptedException {
        PrintStream answers = System.out;
        // Libraries of the site may say things.
        System.setOut(System.err);
        BlockingQueue<String> lines = new LinkedBlockingQueue<>();
        Thread reader = new Thread(() -> read(lines), "commands");
        reader.setDaemon(true);
        reader.start();
        ResizableStore store = null;
        try {
            store = open(arguments);
        } catch (Exception | LinkageError refused) {
            answers.println(Answer.refused(refused));
            answers.flush();
            System.exit(BAD_USAGE);
        }
        String version = Stores.class.getPackage().getImplementationVersion();
        answers.println(Answer.ready(version == null ? "unknown" : version));
        while (true) {
            answers.println(answer(store, lines.take()));
            answers.flush();
        }
    }

    private static ResizableStore open(String[] arguments) throws Exception {
        String kind = arguments.length == 0 ? "" : arguments[0];
        if (kind.equals("alluxio") && arguments.length <= 2) {
            return AlluxioWorker.open(arguments.length == 2 ? arguments[1] : "");
        }
        if (kind.equals("hdfs") && arguments.length == 2) {
            return new CachePool(arguments[1]);
        }
        throw new IllegalArgumentException("usage: alluxio [HOST:PORT] | hdfs POOL");
    }

    static String answer(ResizableStore store, String line) {
        long number = 0;
        try {
            Command command = Command.of(line);
            number = command.number();
            return Answer.done(number, command.carryOut(store));
        } catch (Exception | LinkageError failed) {
            return Answer.failed(number, failed);
        }
    }

    private static void read(BlockingQueue<String> lines) {
        try (BufferedReader input = new BufferedReader(
                new InputStreamReader(System.in, StandardCharsets.UTF_8))) {
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                lines.add(line);
            }
        } catch (IOException gone) {
            // As at its end.
        }
        // Also where a call to the store hangs.
        Runtime.getRuntime().halt(0);
    }
}
