package io.tidepool.examples.puma;

import java.io.IOException;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.io.IntWritable;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.lib.reduce.LongSumReducer;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;

/**
 * Counts ratings by their value: {@code HistogramRatings INPUT OUTPUT}. A line of the input is
 * {@code movie:user_rating,user_rating,...} with ratings from 1 to 5; a line of the output is a
 * rating, a tabulator, and how often it was given.
 */
public final class HistogramRatings extends Configured implements Tool {
    public static void main(String[] arguments) throws Exception {
        System.exit(ToolRunner.run(new HistogramRatings(), arguments));
    }

    @Override
    public int run(String[] arguments) throws Exception {
        Job job = Jobs.of(getConf(), HistogramRatings.class, arguments);
        job.setMapperClass(Ratings.class);
        job.setCombinerClass(LongSumReducer.class);
        job.setReducerClass(LongSumReducer.class);
        job.setOutputKeyClass(IntWritable.class);
        job.setOutputValueClass(LongWritable.class);
        return Jobs.run(job);
    }

    /** Every rating of a line, once each. */
    public static final class Ratings
            extends Mapper<LongWritable, Text, IntWritable, LongWritable> {
        private static final LongWritable ONE = new LongWritable(1);
        private final IntWritable rating = new IntWritable();

        @Override
        protected void map(LongWritable offset, Text line, Context context)
                throws IOException, InterruptedException {
            String text = line.toString();
            int begin = text.indexOf(':') + 1;
            if (begin == 0) {
                throw new IOException("not movie:user_rating,...: " + text);
            }
            while (begin < text.length()) {
                int comma = text.indexOf(',', begin);
                int end = comma < 0 ? text.length() : comma;
                rating.set(rating(text.substring(begin, end)));
                context.write(rating, ONE);
                begin = end + 1;
            }
        }

        private static int rating(String given) throws IOException {
            int last = given.length() - 1;
            char value = last > 0 ? given.charAt(last) : 0;
            if (value < '1' || value > '5' || given.indexOf('_') != last - 1) {
                throw new IOException("not user_rating with a rating from 1 to 5: " + given);
            }
            return value - '0';
        }
    }
}
