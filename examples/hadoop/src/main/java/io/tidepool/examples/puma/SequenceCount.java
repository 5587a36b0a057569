package io.tidepool.examples.puma;

import java.io.IOException;
import java.util.StringTokenizer;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.lib.input.FileSplit;
import org.apache.hadoop.mapreduce.lib.reduce.LongSumReducer;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;

/**
 * Counts how often each three words follow each other in each file: {@code SequenceCount INPUT
 * OUTPUT}. Words are what white space separates; a sequence does not cross lines. Each line of the
 * output is {@code first|second|third|file}, a tabulator, and the count. Prints the bytes of both.
 */
public final class SequenceCount extends Configured implements Tool {
    public static void main(String[] arguments) throws Exception {
        System.exit(ToolRunner.run(new SequenceCount(), arguments));
    }

    @Override
    public int run(String[] arguments) throws Exception {
        Job job = Jobs.of(getConf(), SequenceCount.class, arguments);
        job.setMapperClass(Sequences.class);
        job.setCombinerClass(LongSumReducer.class);
        job.setReducerClass(LongSumReducer.class);
        job.setOutputKeyClass(Text.class);
        job.setOutputValueClass(LongWritable.class);
        return Jobs.run(job);
    }

    /** Every three consecutive words of a line, once each. */
    public static final class Sequences extends Mapper<LongWritable, Text, Text, LongWritable> {
        private static final LongWritable ONE = new LongWritable(1);
        private final Text key = new Text();
        private final StringBuilder sequence = new StringBuilder();
        private String file;

        @Override
        protected void setup(Context context) {
            file = ((FileSplit) context.getInputSplit()).getPath().getName();
        }

        @Override
        protected void map(LongWritable offset, Text line, Context context)
                throws IOException, InterruptedException {
            StringTokenizer words = new StringTokenizer(line.toString());
            String first = words.hasMoreTokens() ? words.nextToken() : "";
            String second = words.hasMoreTokens() ? words.nextToken() : "";
            while (words.hasMoreTokens()) {
                String third = words.nextToken();
                sequence.setLength(0);
                sequence.append(first).append('|').append(second).append('|');
                key.set(sequence.append(third).append('|').append(file).toString());
                context.write(key, ONE);
                first = second;
                second = third;
            }
        }
    }
}
