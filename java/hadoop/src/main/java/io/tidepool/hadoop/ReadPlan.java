/*
 * What openFile() tells of the reads to come: the options that Hadoop has for every file system,
 * understood. Unknown policies are ignored, as in Hadoop, and so are numbers that do not parse. No
 * option changes a byte that is read.
 */
package io.tidepool.hadoop;

import java.util.List;
import java.util.Locale;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;

/**
 * The plan of an open.
 *
 * @param pattern in which order
 * @param start where the first read begins, in bytes
 * @param end nothing is read ahead beyond this, in bytes; negative for no end
 * @param bufferBytes size of the buffer; negative for the option of tide://
 */
record ReadPlan(Pattern pattern, long start, long end, int bufferBytes) {

    // Hadoop has names for them since 3.3.5 only.
    private static final String OPEN = "fs.option.openfile.";
    private static final String POLICY = OPEN + "read.policy";
    private static final String BUFFER = OPEN + "buffer.size";
    private static final String START = OPEN + "split.start";
    private static final String END = OPEN + "split.end";
    private static final String LENGTH = OPEN + "length";
    private static final String FOOTER = OPEN + "footer.cache";

    /** Keys that an open understands: Hadoop's and ours. */
    static final Set<String> KNOWN = Stream.concat(
            List.of(POLICY, BUFFER, START, END, LENGTH, FOOTER).stream(),
            TideOptions.PER_OPEN.stream()).collect(Collectors.toUnmodifiableSet());

    private static final int BUFFER_BYTES_MAX = 64 << 20;

    /** In the order of the native library. */
    enum Pattern { UNKNOWN, SEQUENTIAL, WHOLE, RANDOM }

    /** What the options of an open say. */
    static ReadPlan of(Configuration options) {
        long start = number(options, START, 0);
        long end = number(options, END, -1);
        long buffer = number(options, BUFFER, -1);
        return new ReadPlan(pattern(options), start, end >= start ? end : -1,
                (int) Math.min(buffer, BUFFER_BYTES_MAX));
    }

    private static long number(Configuration options, String key, long otherwise) {
        try {
            long number = options.getLong(key, otherwise);
            return number < 0 ? otherwise : number;
        } catch (NumberFormatException none) {
            return otherwise;
        }
    }

    /** Of the first policy of the list that is known. */
    private static Pattern pattern(Configuration options) {
        for (String policy : options.getTrimmedStrings(POLICY)) {
            switch (policy.toLowerCase(Locale.ROOT)) {
                case "sequential", "csv", "json", "avro":
                    return Pattern.SEQUENTIAL;
                case "whole-file":
                    return Pattern.WHOLE;
                case "random", "vector", "columnar", "parquet", "orc", "hbase":
                    return Pattern.RANDOM;
                case "adaptive", "default":
                    return Pattern.UNKNOWN;
                default:
            }
        }
        return Pattern.UNKNOWN;
    }

    /** As the native library takes it; {@code null} where nothing is known. */
    long[] numbers() {
        boolean isEmpty = pattern == Pattern.UNKNOWN && start == 0 && end < 0;
        return isEmpty ? null : new long[] {pattern.ordinal(), start, end};
    }
}
