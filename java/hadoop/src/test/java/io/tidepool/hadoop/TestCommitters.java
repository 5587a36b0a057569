/*
 * The committers that the guide names, each by a MapReduce job in this process: its output is
 * there whole, on the PFS, and nothing is left beside it.
 */
package io.tidepool.hadoop;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.io.LongWritable;
import org.apache.hadoop.io.NullWritable;
import org.apache.hadoop.io.Text;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.Mapper;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;
import org.junit.Test;

public class TestCommitters {

    private static final String ALGORITHM = "mapreduce.fileoutputcommitter.algorithm.version";
    private static final String FACTORY = "mapreduce.outputcommitter.factory.scheme.tide";
    private static final String MANIFEST =
            "org.apache.hadoop.mapreduce.lib.output.committer.manifest.ManifestCommitterFactory";

    /** Writes each line as it is. */
    public static final class Lines extends Mapper<LongWritable, Text, Text, NullWritable> {
        @Override
        protected void map(LongWritable offset, Text line, Context context)
                throws IOException, InterruptedException {
            context.write(line, NullWritable.get());
        }
    }

    /** Copies the lines of two files by two tasks; returns what is in the mark of success. */
    private static String commit(Map<String, String> options) throws Exception {
        try (var scene = Scene.start("64MiB")) {
            java.nio.file.Path pfs = scene.node.pfs();
            Files.createDirectory(pfs.resolve("in"));
            Files.writeString(pfs.resolve("in/a"), "one\ntwo\n");
            Files.writeString(pfs.resolve("in/b"), "three\n");
            Configuration configuration = new Configuration();
            scene.node.options().forEach(configuration::set);
            configuration.set("mapreduce.framework.name", "local");
            // One of an earlier job is of another node.
            configuration.setBoolean("fs.tide.impl.disable.cache", true);
            options.forEach(configuration::set);
            Job job = Job.getInstance(configuration);
            job.setMapperClass(Lines.class);
            job.setNumReduceTasks(0);
            job.setOutputKeyClass(Text.class);
            job.setOutputValueClass(NullWritable.class);
            FileInputFormat.addInputPath(job, new Path("tide:///in"));
            FileOutputFormat.setOutputPath(job, new Path("tide:///out"));
            assertTrue("the job", job.waitForCompletion(false));
            try (Stream<java.nio.file.Path> all = Files.walk(pfs.resolve("out"))) {
                List<String> names = all.filter(Files::isRegularFile)
                        .map(path -> pfs.resolve("out").relativize(path).toString()).sorted()
                        .toList();
                assertEquals(List.of("_SUCCESS", "part-m-00000", "part-m-00001"), names);
            }
            String both = Files.readString(pfs.resolve("out/part-m-00000"))
                    + Files.readString(pfs.resolve("out/part-m-00001"));
            assertEquals(List.of("one", "three", "two"), both.lines().sorted().toList());
            return Files.readString(pfs.resolve("out/_SUCCESS"));
        }
    }

    @Test
    public void hadoopsOwnInBothAlgorithms() throws Exception {
        assertEquals("", commit(Map.of(ALGORITHM, "1")));
        assertEquals("", commit(Map.of(ALGORITHM, "2")));
    }

    @Test
    public void theManifestCommitter() throws Exception {
        String success = commit(Map.of(FACTORY, MANIFEST));
        assertTrue(success, success.contains("ManifestCommitter"));
    }
}
