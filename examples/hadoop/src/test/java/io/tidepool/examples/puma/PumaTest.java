package io.tidepool.examples.puma;

import static org.junit.Assert.assertArrayEquals;
import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertFalse;
import static org.junit.Assert.assertTrue;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.SplittableRandom;
import java.util.function.Function;
import java.util.function.Supplier;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.util.Tool;
import org.apache.hadoop.util.ToolRunner;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;

/** The jobs on a few lines whose answers were found by hand, and what the generators promise. */
public final class PumaTest {
    private static final int RATIO_BYTES = 1 << 20;

    @Rule public final TemporaryFolder folder = new TemporaryFolder();
    private Path input;
    private Path output;

    @Before
    public void directories() throws IOException {
        input = folder.newFolder("in").toPath();
        output = folder.getRoot().toPath().resolve("out");
    }

    @Test
    public void sequencesAreCountedByFileAndDoNotCrossLines() throws Exception {
        write("one", "a b c a b c\n\nx y\nz\n  b\tc   a \n");
        write("two", "a b c\n");
        // The first line has abc, bca, cab, abc; the last one bca. Two words are no sequence.
        List<String> expected =
                List.of("a|b|c|one\t2", "a|b|c|two\t1", "b|c|a|one\t2", "c|a|b|one\t1");
        assertEquals(expected, answer(new SequenceCount()));
    }

    @Test
    public void filesAreRankedByCountAndThenByName() throws Exception {
        write("counts", "a|b|c|x\t9\na|b|c|y\t10\na|b|c|w\t9\nd|e|f|x\t1\np|q|r|s|x\t2\n");
        write("equal", "g|h|i|w\t3\ng|h|i|x\t3\nj|k|l|x\t3\nj|k|l|w\t3\n");
        // 10 before 9, though not as text; w before x, whichever came first; a bar in a word
        // belongs to the word.
        List<String> expected =
                List.of(
                        "a|b|c\t10|y", "a|b|c\t9|w", "a|b|c\t9|x", "d|e|f\t1|x", "g|h|i\t3|w",
                        "g|h|i\t3|x", "j|k|l\t3|w", "j|k|l\t3|x", "p|q|r|s\t2|x");
        assertEquals(expected, answer(new RankedInvertedIndex()));
    }

    @Test
    public void ratingsAreCountedByValue() throws Exception {
        write("ratings", "7:10_5,11_3,12_5\n8:10_1\n9:3_2,4_4,5_4,6_4\n10:\n");
        List<String> expected = List.of("1\t1", "2\t1", "3\t1", "4\t3", "5\t2");
        assertEquals(expected, answer(new HistogramRatings()));
    }

    @Test
    public void whatIsNoInputFailsTheJob() throws Exception {
        write("ratings", "7:10_5,11_6\n");
        assertEquals(1, status(new HistogramRatings()));
        Files.delete(input.resolve("ratings"));
        write("counts", "a|b|c|x 9\n");
        output = output.resolveSibling("other");
        assertEquals(1, status(new RankedInvertedIndex()));
    }

    @Test
    public void sequencesAreThreeTimesTheText() throws Exception {
        for (int seed = 0; seed < 4; seed++) {
            for (int bytes : new int[] {RATIO_BYTES, 4 * RATIO_BYTES}) {
                byte[] text = generated(TextGenerator::lines, bytes, seed);
                double ratio = (double) sequenceBytes(text) / text.length;
                assertTrue(bytes + ": " + ratio, ratio > 2.9 && ratio < 3.1);
            }
        }
    }

    @Test
    public void aSeedTellsTheBytes() throws Exception {
        List<Function<SplittableRandom, Supplier<String>>> kinds =
                List.of(TextGenerator::lines, RatingsGenerator::lines);
        for (Function<SplittableRandom, Supplier<String>> lines : kinds) {
            byte[] text = generated(lines, RATIO_BYTES, 1);
            assertArrayEquals(text, generated(lines, RATIO_BYTES, 1));
            assertFalse(Arrays.equals(text, generated(lines, RATIO_BYTES, 2)));
        }
    }

    @Test
    public void filesHaveTheSizesAskedForAndDiffer() throws Exception {
        String[] arguments = {output.toUri().toString(), "250000", "100000", "5"};
        Tool generator = new Generated("text", TextGenerator::lines);
        assertEquals(0, ToolRunner.run(new Configuration(), generator, arguments));
        long[] limits = {100_000, 100_000, 50_000};
        for (int at = 0; at < limits.length; at++) {
            long size = Files.size(output.resolve("text-0000" + at));
            // The longest line is far shorter than 200 bytes.
            assertTrue(at + ": " + size, size <= limits[at] && size > limits[at] - 200);
        }
        assertFalse(Files.exists(output.resolve("text-00003")));
        assertTrue(Files.mismatch(output.resolve("text-00000"), output.resolve("text-00001")) >= 0);
    }

    private void write(String file, String text) throws IOException {
        Files.writeString(input.resolve(file), text);
    }

    private int status(Tool job) throws Exception {
        Configuration configuration = new Configuration();
        configuration.set("hadoop.tmp.dir", folder.getRoot().toPath().resolve("tmp").toString());
        String[] paths = {input.toUri().toString(), output.toUri().toString()};
        return ToolRunner.run(configuration, job, paths);
    }

    private List<String> answer(Tool job) throws Exception {
        assertEquals(0, status(job));
        return Files.readAllLines(output.resolve("part-r-00000"));
    }

    private static byte[] generated(
            Function<SplittableRandom, Supplier<String>> lines, int bytes, long seed)
            throws IOException {
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        Generated.write(output, bytes, lines.apply(new SplittableRandom(seed)));
        return output.toByteArray();
    }

    /** What SequenceCount would write, counted in another way. */
    private static long sequenceBytes(byte[] text) {
        Map<String, Integer> counts = new HashMap<>();
        for (String line : new String(text, StandardCharsets.US_ASCII).split("\n")) {
            String[] words = line.split(" ");
            for (int at = 2; at < words.length; at++) {
                String key = words[at - 2] + "|" + words[at - 1] + "|" + words[at] + "|text-00000";
                counts.merge(key, 1, Integer::sum);
            }
        }
        long bytes = 0;
        for (Map.Entry<String, Integer> entry : counts.entrySet()) {
            bytes += (entry.getKey() + "\t" + entry.getValue() + "\n").length();
        }
        return bytes;
    }
}
