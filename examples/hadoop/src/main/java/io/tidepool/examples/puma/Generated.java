package io.tidepool.examples.puma;

import java.io.BufferedOutputStream;
import java.io.IOException;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.util.SplittableRandom;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.util.Tool;

/**
 * Files of generated lines, of a given size in all and each, in any file system of Hadoop:
 * {@code DIRECTORY BYTES [BYTES_OF_A_FILE [SEED]]}. The same seed gives the same bytes. A file ends
 * with the last line that fits; nothing is held in memory.
 */
final class Generated extends Configured implements Tool {
    private static final long FILE_BYTES = 64L << 20;
    private static final int BUFFER_BYTES = 1 << 20;

    private final String name;
    private final Function<SplittableRandom, Supplier<String>> lines;

    /** Files {@code name-00000} and so on; {@code lines} gives the lines of one of them. */
    Generated(String name, Function<SplittableRandom, Supplier<String>> lines) {
        this.name = name;
        this.lines = lines;
    }

    @Override
    public int run(String[] arguments) throws Exception {
        if (arguments.length < 2 || arguments.length > 4) {
            throw new IllegalArgumentException("usage: DIRECTORY BYTES [BYTES_OF_A_FILE [SEED]]");
        }
        Path directory = new Path(arguments[0]);
        long left = Long.parseLong(arguments[1]);
        long each = arguments.length > 2 ? Long.parseLong(arguments[2]) : FILE_BYTES;
        if (each <= 0) {
            throw new IllegalArgumentException("a file of " + each + " bytes");
        }
        long seed = arguments.length > 3 ? Long.parseLong(arguments[3]) : 1;
        FileSystem files = directory.getFileSystem(getConf());
        SplittableRandom seeds = new SplittableRandom(seed);
        long written = 0;
        int count = 0;
        for (; left > 0; left -= each) {
            Path file = new Path(directory, String.format("%s-%05d", name, count++));
            try (OutputStream output = new BufferedOutputStream(files.create(file), BUFFER_BYTES)) {
                written += write(output, Math.min(left, each), lines.apply(seeds.split()));
            }
        }
        System.out.printf("GENERATED %d bytes in %d files%n", written, count);
        return 0;
    }

    /** Writes whole lines, up to that many bytes; how many they were. */
    static long write(OutputStream output, long limit, Supplier<String> lines)
            throws IOException {
        long written = 0;
        while (true) {
            byte[] line = (lines.get() + '\n').getBytes(StandardCharsets.US_ASCII);
            if (written + line.length > limit) {
                return written;
            }
            output.write(line);
            written += line.length;
        }
    }
}
