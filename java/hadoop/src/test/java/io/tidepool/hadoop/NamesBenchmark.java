/*
 * Lists, locates, globs and asks for files of a large directory through tide:// and through
 * Hadoop's raw local file system on the same directory, in turns, and prints the ratios. Files are
 * as long as said; with several nodes, the first one is asked. Run by hand; no test.
 *
 *     java -cp CLASSPATH -Dtidepool.binary=FILE io.tidepool.hadoop.NamesBenchmark \
 *         [FILES [ROUNDS [NODES [BYTES]]]]
 */
package io.tidepool.hadoop;

import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.RemoteIterator;

/** Metadata of many files, side by side. */
public final class NamesBenchmark {

    private static final int WARM_UP = 3;

    /** What is measured of one file system. */
    private interface Work {
        void run(FileSystem system, Path directory) throws IOException;
    }

    private NamesBenchmark() {}

    /** Measures and prints. */
    public static void main(String[] words) throws IOException {
        int files = words.length > 0 ? Integer.parseInt(words[0]) : 10_000;
        int rounds = words.length > 1 ? Integer.parseInt(words[1]) : 15;
        int nodes = words.length > 2 ? Integer.parseInt(words[2]) : 1;
        int bytes = words.length > 3 ? Integer.parseInt(words[3]) : 100;
        List<TestNode> all = nodes > 1 ? TestNode.cluster(nodes, "64MiB")
                : List.of(TestNode.start("64MiB"));
        try {
            TestNode node = all.get(0);
            for (int number = 0; number < files; number++) {
                Files.write(node.pfs().resolve("part-" + number), new byte[bytes]);
            }
            Configuration configuration = new Configuration();
            node.options().forEach(configuration::set);
            URI root = URI.create("tide:///");
            FileSystem raw = new RawLocalFileSystem();
            raw.initialize(URI.create("file:///"), configuration);
            try (FileSystem tide = FileSystem.newInstance(root, configuration)) {
                compare(tide, new Path("/"), raw, new Path(node.pfs().toUri()), rounds);
            }
        } finally {
            // The directory is the first one's.
            for (int number = all.size() - 1; number >= 0; number--) {
                all.get(number).close();
            }
        }
    }

    private static void compare(
            FileSystem tide, Path tideAt, FileSystem raw, Path rawAt, int rounds)
            throws IOException {
        Map<String, Work> works = new LinkedHashMap<>();
        works.put("list", (system, at) -> system.listStatus(at));
        works.put("list with places", (system, at) -> {
            RemoteIterator<LocatedFileStatus> located = system.listLocatedStatus(at);
            while (located.hasNext()) {
                located.next();
            }
        });
        works.put("glob", (system, at) -> system.globStatus(new Path(at, "part-*7")));
        works.put("status", (system, at) -> {
            for (int number = 0; number < 1000; number++) {
                system.getFileStatus(new Path(at, "part-" + number));
            }
        });
        works.put("list with owners", (system, at) -> {
            // Raw local forks a program a file for this where Hadoop's native library is absent.
            FileStatus[] all = system.listStatus(at);
            for (int number = 0; number < 20; number++) {
                all[number].getOwner();
            }
        });
        for (Map.Entry<String, Work> work : works.entrySet()) {
            double[] ratios = new double[rounds];
            double[] own = new double[rounds];
            for (int round = -WARM_UP; round < rounds; round++) {
                double ours = seconds(work.getValue(), tide, tideAt);
                double theirs = seconds(work.getValue(), raw, rawAt);
                if (round >= 0) {
                    ratios[round] = theirs / ours;
                    own[round] = ours;
                }
            }
            Arrays.sort(ratios);
            Arrays.sort(own);
            System.out.printf("%-18s rate of tide / rate of raw local: %.2f (%.2f to %.2f), "
                    + "%.1f ms%n", work.getKey(), ratios[rounds / 2], ratios[0],
                    ratios[rounds - 1], own[rounds / 2] * 1e3);
        }
    }

    private static double seconds(Work work, FileSystem system, Path at) throws IOException {
        long begun = System.nanoTime();
        work.run(system, at);
        return (System.nanoTime() - begun) / 1e9;
    }
}
