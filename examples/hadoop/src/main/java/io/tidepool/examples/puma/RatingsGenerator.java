package io.tidepool.examples.puma;

import java.util.SplittableRandom;
import java.util.function.Supplier;
import org.apache.hadoop.util.ToolRunner;

/**
 * Ratings for {@link HistogramRatings}: {@code RatingsGenerator DIRECTORY BYTES [BYTES_OF_A_FILE
 * [SEED]]}. Each line is a movie with some of its ratings, from 1 to 5; good ones are more often.
 */
public final class RatingsGenerator {
    /** Of a hundred ratings, 4 are a 1, 10 are a 2, and so on. */
    private static final int[] WEIGHTS = {4, 10, 24, 36, 26};

    private static final int MOVIES = 1_000_000;
    private static final int USERS = 3_000_000;
    private static final int MOST_OF_A_LINE = 200;

    private RatingsGenerator() {}

    public static void main(String[] arguments) throws Exception {
        System.exit(ToolRunner.run(new Generated("ratings", RatingsGenerator::lines), arguments));
    }

    /** The lines of one file, without end. */
    static Supplier<String> lines(SplittableRandom random) {
        return () -> {
            StringBuilder line = new StringBuilder();
            line.append(1 + random.nextInt(MOVIES)).append(':');
            for (int left = 1 + random.nextInt(MOST_OF_A_LINE); left > 0; left--) {
                line.append(1 + random.nextInt(USERS)).append('_').append(rating(random));
                line.append(left > 1 ? "," : "");
            }
            return line.toString();
        };
    }

    private static int rating(SplittableRandom random) {
        int left = random.nextInt(100);
        int rating = 1;
        while (left >= WEIGHTS[rating - 1]) {
            left -= WEIGHTS[rating - 1];
            rating++;
        }
        return rating;
    }
}
