package io.tidepool.examples.puma;

import java.io.IOException;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import org.apache.hadoop.conf.Configured;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.Reducer;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;

/**
 * Ranks the files of each sequence of words by how often it is in them: {@code RankedInvertedIndex
 * INPUT OUTPUT}. Its input is what {@link SequenceCount} wrote. Each line of the output is {@code
 * first|second|third}, a tabulator, and {@code count|file}: the highest count of a sequence first,
 * equal ones by the name of the file.
 */
public final class RankedInvertedIndex extends Configured implements Tool {
    public static void main(String[] arguments) throws Exception {
        System.exit(ToolRunner.run(new RankedInvertedIndex(), arguments));
    }

    @Override
    public int run(String[] arguments) throws Exception {
        Job job = Jobs.of(getConf(), RankedInvertedIndex.class, arguments);
        job.setMapperClass(Inverter.class);
        job.setReducerClass(Ranker.class);
        job.setOutputKeyClass(Text.class);
        job.setOutputValueClass(Text.class);
        return Jobs.run(job);
    }

    /** From a counted sequence to its words, with count and file. */
    public static final class Inverter extends Mapper<LongWritable, Text, Text, Text> {
        private final Text words = new Text();
        private final Text found = new Text();

        @Override
        protected void map(LongWritable offset, Text line, Context context)
                throws IOException, InterruptedException {
            String text = line.toString();
            int tabulator = text.lastIndexOf('\t');
            int bar = text.lastIndexOf('|', tabulator);
            if (tabulator < 0 || bar < 0) {
                throw new IOException("not of SequenceCount, words|file TAB count: " + text);
            }
            words.set(text.substring(0, bar));
            String file = text.substring(bar + 1, tabulator);
            found.set(text.substring(tabulator + 1) + '|' + file);
            context.write(words, found);
        }
    }

    /** One line for each file of a sequence. */
    public static final class Ranker extends Reducer<Text, Text, Text, Text> {
        private static final Comparator<Found> RANK =
                Comparator.comparingLong(Found::count).reversed().thenComparing(Found::file);
        private final Text line = new Text();

        @Override
        protected void reduce(Text words, Iterable<Text> values, Context context)
                throws IOException, InterruptedException {
            List<Found> all = new ArrayList<>();
            for (Text value : values) {
                all.add(Found.of(value.toString()));
            }
            all.sort(RANK);
            for (Found found : all) {
                line.set(found.count() + "|" + found.file());
                context.write(words, line);
            }
        }
    }

    private record Found(long count, String file) {
        static Found of(String text) {
            int bar = text.indexOf('|');
            return new Found(Long.parseLong(text.substring(0, bar)), text.substring(bar + 1));
        }
    }
}
