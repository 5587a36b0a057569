/*
 * Times reads of a resident file by Hadoop's streams beside the same reads of a plain file on tmpfs
 * by a program in Rust (`bench-raw`) and by Java's channels, in turns. It times, so it is no test.
 *
 *   java -cp ... io.tidepool.hadoop.ReadBenchmark SOCKET PFS NAME RAW_FILE BENCH_RAW [ROUNDS]
 */
package io.tidepool.hadoop;

import java.io.BufferedReader;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FileRange;
import org.apache.hadoop.fs.FileSystem;

public final class ReadBenchmark {

    private static final int LARGE = 1 << 20;
    private static final int SMALL = 4 << 10;
    private static final int SMALL_READS = 200_000;
    private static final int LARGE_READS = 2_000;
    private static final int RANGES = 100;
    private static final int RANGE = 64 << 10;
    private static final int RANGE_ROUNDS = 60;
    private static final int OPENS = 3_000;

    private interface Pass {
        /** Runs and returns the seconds it took. */
        double run(long seed) throws Exception;
    }

    private final NativeClient client;
    private final String name;
    private final FileChannel channel;
    private final long length;
    private final PrintWriter toRaw;
    private final BufferedReader fromRaw;
    private final ByteBuffer direct = ByteBuffer.allocateDirect(LARGE);
    private final byte[] array = new byte[LARGE];
    private final FileSystem.Statistics statistics = new FileSystem.Statistics("tide");
    private final Map<String, Pass> passes = new HashMap<>();

    private ReadBenchmark(String[] words) throws IOException {
        client = NativeClient.connect(
                Map.of(TideOptions.SOCKET, words[0], TideOptions.PFS, words[1]));
        name = words[2];
        channel = FileChannel.open(Path.of(words[3]));
        length = channel.size();
        Process raw = new ProcessBuilder(words[4], words[3])
                .redirectError(ProcessBuilder.Redirect.INHERIT).start();
        toRaw = new PrintWriter(raw.outputWriter(), true);
        fromRaw = raw.inputReader();
    }

    public static void main(String[] words) throws Exception {
        ReadBenchmark benchmark = new ReadBenchmark(words);
        int rounds = words.length > 5 ? Integer.parseInt(words[5]) : 9;
        benchmark.run(rounds);
    }

    private double raw(String pass) throws IOException {
        toRaw.println(pass);
        return Double.parseDouble(fromRaw.readLine());
    }

    private FSDataInputStream open() throws IOException {
        NativeFile file = NativeFile.open(client, name, NativeFile.READ, 0, null);
        return new FSDataInputStream(new TideInputStream(file, 64 << 10, statistics, null));
    }

    private static long next(long state) {
        state ^= state << 13;
        state ^= state >>> 7;
        state ^= state << 17;
        return state;
    }

    private static double since(long start) {
        return (System.nanoTime() - start) / 1e9;
    }

    private double sequential(boolean isDirect) throws IOException {
        long start = System.nanoTime();
        try (FSDataInputStream in = open()) {
            long done = 0;
            while (done < length) {
                int bytes = isDirect ? in.read(direct.clear()) : in.read(array, 0, LARGE);
                done += bytes;
            }
        }
        return since(start);
    }

    private double random(long seed, int size, int count, boolean isDirect) throws IOException {
        long pieces = length / size;
        long state = seed * 0x9E3779B97F4A7C15L | 1;
        try (FSDataInputStream in = open()) {
            long start = System.nanoTime();
            for (int read = 0; read < count; read++) {
                state = next(state);
                long at = Long.remainderUnsigned(state, pieces) * size;
                if (isDirect) {
                    in.readFully(at, direct.clear().limit(size));
                } else {
                    in.readFully(at, array, 0, size);
                }
            }
            return since(start);
        }
    }

    private double randomByChannel(long seed, int size, int count) throws IOException {
        long pieces = length / size;
        long state = seed * 0x9E3779B97F4A7C15L | 1;
        long start = System.nanoTime();
        for (int read = 0; read < count; read++) {
            state = next(state);
            channel.read(direct.clear().limit(size), Long.remainderUnsigned(state, pieces) * size);
        }
        return since(start);
    }

    private double vectored(boolean isVectored) throws Exception {
        ByteBuffer[] buffers = new ByteBuffer[RANGES];
        for (int index = 0; index < RANGES; index++) {
            buffers[index] = ByteBuffer.allocateDirect(RANGE);
        }
        ByteBuffer whole = ByteBuffer.allocateDirect(RANGE * RANGES);
        long gap = length / RANGES / RANGE * RANGE;
        try (FSDataInputStream in = open()) {
            long start = System.nanoTime();
            for (int round = 0; round < RANGE_ROUNDS; round++) {
                if (!isVectored) {
                    in.readFully(0, whole.clear());
                    continue;
                }
                List<FileRange> ranges = new ArrayList<>(RANGES);
                for (int index = 0; index < RANGES; index++) {
                    ranges.add(FileRange.createFileRange(index * gap, RANGE));
                }
                int[] next = new int[1];
                in.readVectored(ranges, size -> buffers[next[0]++].clear());
                for (FileRange range : ranges) {
                    range.getData().get();
                }
            }
            return since(start);
        }
    }

    private double opens() throws IOException {
        long start = System.nanoTime();
        for (int round = 0; round < OPENS; round++) {
            try (FSDataInputStream in = open()) {
                in.readFully(0, array, 0, SMALL);
            }
        }
        return since(start);
    }

    private void run(int rounds) throws Exception {
        double gigabytes = length / 1e9;
        compare(rounds, "sequential 1 MiB, direct", "GB/s", gigabytes,
                seed -> sequential(true), "Rust", seed -> raw("sequential " + LARGE));
        compare(rounds, "sequential 1 MiB, array", "GB/s", gigabytes,
                seed -> sequential(false), "Rust", seed -> raw("sequential " + LARGE));
        compare(rounds, "4 KiB at positions, direct", "1/s", SMALL_READS,
                seed -> random(seed, SMALL, SMALL_READS, true),
                "Java channel", seed -> randomByChannel(seed, SMALL, SMALL_READS));
        compare(rounds, "4 KiB at positions, array", "1/s", SMALL_READS,
                seed -> random(seed, SMALL, SMALL_READS, false),
                "Rust", seed -> raw("random " + SMALL + " " + SMALL_READS + " " + seed));
        compare(rounds, "1 MiB at positions, direct", "1/s", LARGE_READS,
                seed -> random(seed, LARGE, LARGE_READS, true),
                "Java channel", seed -> randomByChannel(seed, LARGE, LARGE_READS));
        compare(rounds, "1 MiB at positions, array", "1/s", LARGE_READS,
                seed -> random(seed, LARGE, LARGE_READS, false),
                "Rust", seed -> raw("random " + LARGE + " " + LARGE_READS + " " + seed));
        double ranges = (double) RANGES * RANGE * RANGE_ROUNDS / 1e9;
        compare(rounds, "100 ranges of 64 KiB", "GB/s", ranges,
                seed -> vectored(true), "one read of as much", seed -> vectored(false));
        compare(rounds, "open, 4 KiB, close", "1/s", OPENS, seed -> opens(), null, null);
    }

    private static void compare(
            int rounds, String what, String unit, double amount, Pass ours, String other,
            Pass theirs) throws Exception {
        double[] left = new double[rounds];
        double[] right = new double[rounds];
        for (int round = -2; round < rounds; round++) {
            double one = amount / ours.run(round + 10);
            double two = theirs == null ? 0 : amount / theirs.run(round + 10);
            if (round >= 0) {
                left[round] = one;
                right[round] = two;
            }
        }
        StringBuilder line = new StringBuilder(
                String.format("%-28s %s %s", what, spread(left), unit));
        if (theirs != null) {
            double[] ratios = new double[rounds];
            for (int round = 0; round < rounds; round++) {
                ratios[round] = left[round] / right[round];
            }
            line.append(String.format("   %s: %s   ratio %s", other, spread(right),
                    spread(ratios)));
        }
        System.out.println(line);
    }

    private static String spread(double[] values) {
        double[] sorted = values.clone();
        Arrays.sort(sorted);
        return String.format("%.4g (%.4g-%.4g)", sorted[sorted.length / 2], sorted[0],
                sorted[sorted.length - 1]);
    }
}
