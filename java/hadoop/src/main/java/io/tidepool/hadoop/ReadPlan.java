/*
 * What openFile() tells of the reads to come: the options that Hadoop has for every file system,
 * understood. Policies that are not known here are passed over, as Hadoop has it, and so are
 * numbers that are none. Nothing of it changes a byte that is read.
 */
package io.tidepool.hadoop;

import static org.apache.hadoop.fs.Options.OpenFileOptions.FS_OPTION_OPENFILE_BUFFER_SIZE;
import static org.apache.hadoop.fs.Options.OpenFileOptions.FS_OPTION_OPENFILE_READ_POLICY;
import static org.apache.hadoop.fs.Options.OpenFileOptions.FS_OPTION_OPENFILE_SPLIT_END;
import static org.apache.hadoop.fs.Options.OpenFileOptions.FS_OPTION_OPENFILE_SPLIT_START;
import static org.apache.hadoop.fs.Options.OpenFileOptions.FS_OPTION_OPENFILE_STANDARD_OPTIONS;

import java.util.Locale;
import java.util.Set;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.impl.FSBuilderSupport;

/**
 * The plan of an open.
 *
 * @param pattern in which order
 * @param start where the first read begins, in bytes
 * @param end nothing is read ahead beyond this, in bytes; negative for no end
 * @param bufferBytes size of the buffer; negative for the option of tide://
 */
record ReadPlan(Pattern pattern, long start, long end, int bufferBytes) {

    /** Keys that an open understands: Hadoop's and ours. */
    static final Set<String> KNOWN = Stream.concat(
            FS_OPTION_OPENFILE_STANDARD_OPTIONS.stream(), TideOptions.PER_OPEN.stream())
            .collect(Collectors.toUnmodifiableSet());

    private static final int BUFFER_BYTES_MAX = 64 << 20;

    /** In the order of the native library. */
    enum Pattern { UNKNOWN, SEQUENTIAL, WHOLE, RANDOM }

    /** What the options of an open say. */
    static ReadPlan of(Configuration options) {
        FSBuilderSupport numbers = new FSBuilderSupport(options);
        long start = numbers.getPositiveLong(FS_OPTION_OPENFILE_SPLIT_START, 0);
        long end = numbers.getPositiveLong(FS_OPTION_OPENFILE_SPLIT_END, -1);
        long buffer = numbers.getPositiveLong(FS_OPTION_OPENFILE_BUFFER_SIZE, -1);
        return new ReadPlan(pattern(options), start, end >= start ? end : -1,
                (int) Math.min(buffer, BUFFER_BYTES_MAX));
    }

    /** Of the first policy of the list that is known. */
    private static Pattern pattern(Configuration options) {
        for (String policy : options.getTrimmedStrings(FS_OPTION_OPENFILE_READ_POLICY)) {
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
