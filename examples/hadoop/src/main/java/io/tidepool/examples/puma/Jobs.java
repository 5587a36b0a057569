package io.tidepool.examples.puma;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.mapreduce.Job;
import org.apache.hadoop.mapreduce.lib.input.FileInputFormat;
import org.apache.hadoop.mapreduce.lib.output.FileOutputFormat;

/** What the jobs of this package have in common: where they read and write, and how they end. */
final class Jobs {
    private Jobs() {}

    /** A job named after its program, with the two paths that were given. */
    static Job of(Configuration configuration, Class<?> program, String[] paths)
            throws IOException {
        String name = program.getSimpleName();
        if (paths.length != 2) {
            throw new IllegalArgumentException("usage: " + name + " [-D...] INPUT OUTPUT");
        }
        Job job = Job.getInstance(configuration, name);
        job.setJarByClass(program);
        FileInputFormat.addInputPath(job, new Path(paths[0]));
        FileOutputFormat.setOutputPath(job, new Path(paths[1]));
        return job;
    }

    /** Runs it, and prints how many bytes it read and wrote. The result is the exit status. */
    static int run(Job job) throws Exception {
        if (!job.waitForCompletion(true)) {
            return 1;
        }
        long before = bytes(job, FileInputFormat.getInputPaths(job)[0]);
        long after = bytes(job, FileOutputFormat.getOutputPath(job));
        double ratio = (double) after / Math.max(before, 1);
        System.out.printf("BYTES %d %d, ratio %.3f%n", before, after, ratio);
        return 0;
    }

    private static long bytes(Job job, Path path) throws IOException {
        return path.getFileSystem(job.getConfiguration()).getContentSummary(path).getLength();
    }
}
