package io.tidepool.examples;

import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/**
 * How long threads of a JVM stand still: {@code StoppedNode FILE SECONDS}. Eight threads read a
 * resident file, one has nothing to do with the file system, and one each opens, renames and deletes.
 * Prints {@code LONGEST kind=ms ...} for a while with the node running; then waits for a line, upon
 * which whoever sends it has stopped the node, and prints the same once more.
 */
public final class StoppedNode {

    private static final int READERS = 8;
    private static final int STEP = 256 << 10;
    private static final int STEPS = 64;
    private static final int DELETED = 600;

    private final FileSystem files;
    private final Path file;
    private final AtomicBoolean done = new AtomicBoolean();
    private final Map<String, Long> longest = new ConcurrentHashMap<>();

    private StoppedNode(FileSystem files, Path file) {
        this.files = files;
        this.file = file;
    }

    public static void main(String[] arguments) throws Exception {
        Path file = new Path(arguments[0]);
        long milliseconds = 1_000 * Long.parseLong(arguments[1]);
        FileSystem files = FileSystem.newInstance(URI.create(arguments[0]), new Configuration());
        new StoppedNode(files, file).run(milliseconds);
        // Nothing is to be closed at a node that may hang.
        Runtime.getRuntime().halt(0);
    }

    private void run(long milliseconds) throws Exception {
        ExecutorService threads = Executors.newCachedThreadPool();
        List<Future<?>> all = new ArrayList<>();
        for (int reader = 0; reader < READERS; reader++) {
            all.add(threads.submit(this::read));
        }
        all.add(threads.submit(this::elsewhere));
        all.add(threads.submit(this::open));
        all.add(threads.submit(this::rename));
        all.add(threads.submit(this::delete));
        // What is compiled and what is loaded count for nobody.
        Thread.sleep(milliseconds / 2);
        show(milliseconds);
        if (System.in.read() < 0) {
            throw new IllegalStateException("nobody stopped the node");
        }
        show(milliseconds);
        done.set(true);
        for (Future<?> each : all) {
            each.get();
        }
    }

    private void show(long milliseconds) throws InterruptedException {
        longest.clear();
        Thread.sleep(milliseconds);
        StringBuilder line = new StringBuilder("LONGEST");
        new TreeMap<>(longest).forEach((kind, took) ->
                line.append(' ').append(kind).append('=').append(took / 1e6));
        System.out.println(line);
        System.out.flush();
    }

    private void time(String kind, Callable<?> step) throws Exception {
        long begun = System.nanoTime();
        step.call();
        longest.merge(kind, System.nanoTime() - begun, Math::max);
    }

    /** With a pause after each read: what is sought is a wait, and not the want of a processor. */
    private Void read() throws Exception {
        byte[] bytes = new byte[STEP];
        try (FSDataInputStream in = files.open(file)) {
            for (int step = 0; !done.get(); step++) {
                long at = (long) (step % STEPS) * STEP;
                time("resident", () -> {
                    in.readFully(at, bytes);
                    return null;
                });
                Thread.sleep(2);
            }
        }
        return null;
    }

    /** Allocates, so that it waits wherever the garbage collector waits. */
    private Void elsewhere() throws Exception {
        while (!done.get()) {
            time("elsewhere", () -> new byte[1 << 14]);
            Thread.sleep(0, 200_000);
        }
        return null;
    }

    private Void open() throws Exception {
        while (!done.get()) {
            time("open", () -> {
                files.open(file).close();
                return null;
            });
            Thread.sleep(2);
        }
        return null;
    }

    private Void rename() throws Exception {
        Path one = file.suffix(".one");
        Path two = file.suffix(".two");
        files.create(one, true).close();
        for (int round = 0; !done.get(); round++) {
            boolean forth = round % 2 == 0;
            time("rename", () -> files.rename(forth ? one : two, forth ? two : one));
            Thread.sleep(2);
        }
        return null;
    }

    /** Of files that are there before: the close of a new one waits for the node. */
    private Void delete() throws Exception {
        for (int number = 0; number < DELETED; number++) {
            files.create(file.suffix("." + number), true).close();
        }
        for (int number = 0; number < DELETED && !done.get(); number++) {
            Path next = file.suffix("." + number);
            time("delete", () -> files.delete(next, false));
            Thread.sleep(50);
        }
        return null;
    }
}
