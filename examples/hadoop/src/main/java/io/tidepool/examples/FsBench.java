package io.tidepool.examples;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.charset.StandardCharsets;
import java.nio.file.StandardOpenOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

/**
 * Measures file systems by the Hadoop API alone. Reads commands from standard input, one a line:
 * {@code OPERATION KEY=VALUE...}, answers each with {@code RATE number} or {@code FAILED why}.
 * Whoever sends them decides the order of file systems, so that all are measured in one process and
 * in turns. {@code file:///} means the raw local file system, without checksum files.
 */
public final class FsBench {
    private static final int PIECE = 1 << 20;
    private static final int ROUNDS_TO_COMPILE = 20;
    private static final Configuration CONFIGURATION = new Configuration();

    /** What {@code range} has open. */
    private static Path rangePath;
    private static FSDataInputStream rangeInput;

    private final Map<String, String> options = new HashMap<>();
    private final FileSystem files;
    private final Path path;
    private final int threads;

    private FsBench(String[] words) throws Exception {
        for (int at = 1; at < words.length; at++) {
            int equals = words[at].indexOf('=');
            options.put(words[at].substring(0, equals), words[at].substring(equals + 1));
        }
        path = new Path(options.get("path"));
        FileSystem found = path.getFileSystem(CONFIGURATION);
        files = found instanceof LocalFileSystem local ? local.getRawFileSystem() : found;
        threads = Math.toIntExact(number("threads", 1));
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String answer;
            try {
                String[] words = line.trim().split(" +");
                answer = "RATE " + new FsBench(words).run(words[0]);
            } catch (Exception | LinkageError error) {
                answer = "FAILED " + String.valueOf(error).replace('\n', ' ');
            }
            System.out.println(answer);
            System.out.flush();
        }
    }

    private double run(String operation) throws Exception {
        return switch (operation) {
            case "write" -> write();
            case "sequential-direct" -> sequential(true);
            case "sequential-heap" -> sequential(false);
            case "positioned" -> positioned();
            case "vectored" -> vectored();
            case "allocated" -> allocated();
            case "read-small" -> readSmall();
            case "create-small" -> createSmall();
            case "list" -> list();
            case "range" -> range();
            case "delete" -> files.delete(path, true) ? 1 : 0;
            default -> throw new IllegalArgumentException("no operation " + operation);
        };
    }

    /** Reads {@code bytes} from {@code offset} on; the file stays open until another is read. */
    private double range() throws IOException {
        if (!path.equals(rangePath)) {
            if (rangeInput != null) {
                rangeInput.close();
            }
            rangeInput = files.open(path);
            rangePath = path;
        }
        long bytes = number("bytes", PIECE);
        byte[] piece = new byte[PIECE];
        rangeInput.seek(number("offset", 0));
        for (long left = bytes; left > 0; left -= PIECE) {
            rangeInput.readFully(piece, 0, (int) Math.min(PIECE, left));
        }
        return bytes;
    }

    private long number(String name, long otherwise) {
        String value = options.get(name);
        return value == null ? otherwise : Long.parseLong(value);
    }

    /** The file of a thread: all the same, or one each. */
    private Path file(int thread) {
        return threads == 1 || number("shared", 0) == 1 ? path : path.suffix("-" + thread);
    }

    /** Runs {@code work} in all threads and returns the sum of its results a second. */
    private double timed(ThreadWork work) throws Exception {
        long started = System.nanoTime();
        long sum = 0;
        if (threads == 1) {
            sum = work.run(0);
        } else {
            ExecutorService pool = Executors.newFixedThreadPool(threads);
            List<Callable<Long>> tasks = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                int mine = thread;
                tasks.add(() -> work.run(mine));
            }
            for (Future<Long> result : pool.invokeAll(tasks)) {
                sum += value(result);
            }
            pool.shutdown();
        }
        return sum / ((System.nanoTime() - started) / 1e9);
    }

    private static long value(Future<Long> result) throws Exception {
        try {
            return result.get();
        } catch (ExecutionException error) {
            throw error.getCause() instanceof Exception cause ? cause : error;
        }
    }

    private interface ThreadWork {
        long run(int thread) throws Exception;
    }

    /** Bytes a second of writing a new file; {@code sync=1} makes it durable before the close. */
    private double write() throws Exception {
        long bytes = number("bytes", PIECE);
        boolean sync = number("sync", 0) == 1;
        return timed(thread -> {
            byte[] piece = new byte[PIECE];
            new Random(thread).nextBytes(piece);
            try (FSDataOutputStream output = files.create(file(thread), true)) {
                for (long written = 0; written < bytes; written += PIECE) {
                    output.write(piece, 0, (int) Math.min(PIECE, bytes - written));
                }
                if (sync) {
                    output.hsync();
                }
            }
            return bytes;
        });
    }

    /** Opens a file; {@code buffer=} asks for a read buffer of that size. */
    private FSDataInputStream open(Path file) throws Exception {
        String buffer = options.get("buffer");
        if (buffer == null) {
            return files.open(file);
        }
        return files.openFile(file).opt("fs.tide.read.buffer.bytes", buffer).build().get();
    }

    /** Bytes a second of reading a file in pieces of {@code piece=}, by default 1 MiB. */
    private double sequential(boolean direct) throws Exception {
        int piece = Math.toIntExact(number("piece", PIECE));
        return timed(thread -> {
            long sum = 0;
            ByteBuffer buffer = direct ? ByteBuffer.allocateDirect(piece) : null;
            byte[] array = direct ? null : new byte[piece];
            try (FSDataInputStream input = open(file(thread))) {
                while (true) {
                    int count;
                    if (direct) {
                        buffer.clear();
                        count = input.read(buffer);
                    } else {
                        count = input.read(array, 0, piece);
                    }
                    if (count < 0) {
                        return sum;
                    }
                    sum += count;
                }
            }
        });
    }

    /**
     * Bytes that the virtual machine allocates for a read of 1 MiB into a direct buffer, after the
     * reads that let it compile.
     */
    private double allocated() throws Exception {
        var memory = (com.sun.management.ThreadMXBean) ManagementFactory.getThreadMXBean();
        ByteBuffer buffer = ByteBuffer.allocateDirect(PIECE);
        long before = 0;
        long reads = 0;
        try (FSDataInputStream input = files.open(path)) {
            for (int round = 0; round < ROUNDS_TO_COMPILE + 1; round++) {
                input.seek(0);
                before = memory.getCurrentThreadAllocatedBytes();
                reads = 0;
                do {
                    buffer.clear();
                    reads++;
                } while (input.read(buffer) >= 0);
            }
            return (double) (memory.getCurrentThreadAllocatedBytes() - before) / reads;
        }
    }

    /** Reads a second of {@code size} bytes at random places, for {@code ms} milliseconds. */
    private double positioned() throws Exception {
        int size = Math.toIntExact(number("size", 4096));
        long limit = number("ms", 1000) * 1_000_000;
        return timed(thread -> {
            byte[] array = new byte[size];
            Random random = new Random(thread + 1);
            long places = files.getFileStatus(file(thread)).getLen() / size;
            long count = 0;
            try (FSDataInputStream input = files.open(file(thread))) {
                long end = System.nanoTime() + limit;
                while (System.nanoTime() < end) {
                    long position = random.nextLong(places) * size;
                    input.readFully(position, array, 0, size);
                    count++;
                }
            }
            return count;
        });
    }

    /** Bytes a second of vectored reads of 100 ranges of 64 KiB, one after another in the file. */
    private double vectored() throws Exception {
        int ranges = Math.toIntExact(number("ranges", 100));
        int size = Math.toIntExact(number("size", 65_536));
        long rounds = number("rounds", 20);
        List<ByteBuffer> pool = new ArrayList<>();
        return timed(thread -> {
            try (FSDataInputStream input = files.open(file(thread))) {
                for (long round = 0; round < rounds; round++) {
                    List<FileRange> list = new ArrayList<>();
                    for (int range = 0; range < ranges; range++) {
                        list.add(FileRange.createFileRange((round * ranges + range) * size, size));
                    }
                    input.readVectored(list, bytes -> pool.isEmpty()
                            ? ByteBuffer.allocateDirect(bytes) : pool.remove(pool.size() - 1));
                    for (FileRange range : list) {
                        ByteBuffer data = range.getData().get();
                        data.clear();
                        pool.add(data);
                    }
                }
            }
            return rounds * ranges * size;
        });
    }

    /** Opens, reads 4 KiB and closes files {@code f-0} and so on, a second. */
    private double readSmall() throws Exception {
        int count = Math.toIntExact(number("files", 1000));
        long limit = number("ms", 1000) * 1_000_000;
        return timed(thread -> {
            byte[] array = new byte[4096];
            Random random = new Random(thread + 1);
            long done = 0;
            long end = System.nanoTime() + limit;
            while (System.nanoTime() < end) {
                Path small = new Path(path, "f-" + random.nextInt(count));
                try (FSDataInputStream input = files.open(small)) {
                    input.readFully(0, array);
                }
                done++;
            }
            return done;
        });
    }

    /**
     * Creates, writes 4 KiB and closes files {@code f-0} and so on, a second. With {@code sync=1} bytes and names of each are on the disk
     * before the next, as a close of Tidepool's mode through promises.
     */
    private double createSmall() throws Exception {
        int count = Math.toIntExact(number("files", 1000));
        boolean sync = number("sync", 0) == 1;
        files.mkdirs(path);
        byte[] array = new byte[4096];
        return timed(thread -> {
            long done = 0;
            for (int index = thread; index < count; index += threads) {
                Path small = new Path(path, "f-" + index);
                try (FSDataOutputStream output = files.create(small, true)) {
                    output.write(array);
                    if (sync) {
                        output.hsync();
                    }
                }
                if (sync) {
                    syncName(small.getParent());
                }
                done++;
            }
            return done;
        });
    }

    private static void syncName(Path directory) throws IOException {
        java.nio.file.Path local = java.nio.file.Path.of(directory.toUri().getPath());
        try (FileChannel channel = FileChannel.open(local, StandardOpenOption.READ)) {
            channel.force(true);
        }
    }

    /** Lists a directory, a second; {@code expect} is the number of its entries. */
    private double list() throws Exception {
        long limit = number("ms", 1000) * 1_000_000;
        long expected = number("expect", -1);
        return timed(thread -> {
            long done = 0;
            long end = System.nanoTime() + limit;
            while (System.nanoTime() < end) {
                int found = files.listStatus(path).length;
                if (expected >= 0 && found != expected) {
                    throw new IllegalStateException(found + " entries instead of " + expected);
                }
                done++;
            }
            return done;
        });
    }
}
