package io.tidepool.examples.puma;

import java.util.SplittableRandom;
import java.util.function.Supplier;
import org.apache.hadoop.util.ToolRunner;

/**
 * Text for {@link SequenceCount}, which writes about three times as much as it reads of it:
 * {@code TextGenerator DIRECTORY BYTES [BYTES_OF_A_FILE [SEED]]}. Each line is a phrase of words.
 * Most are new. Some repeat one of the file's last new ones, which begin anew with each file, so
 * that the ratio hardly depends on sizes. A few are of a small stock that all files share, so that
 * there is something to rank between files.
 */
public final class TextGenerator {
    /** Of a thousand lines: those that repeat one of this file. */
    private static final int REPEATED = 220;
    /** Of a thousand lines: those of the stock. */
    private static final int SHARED = 25;

    private static final int STOCK = 128;
    private static final int REMEMBERED = 4096;
    private static final int WORDS = 1 << 13;
    private static final int SHORTEST_PHRASE = 8;
    private static final int LONGEST_PHRASE = 14;
    private static final String CONSONANTS = "bdfgklmnprstvz";
    private static final String VOWELS = "aeiou";
    private static final String[] VOCABULARY = vocabulary(new SplittableRandom(8));
    private static final String[] SHARED_PHRASES = stock(new SplittableRandom(9));

    private TextGenerator() {}

    public static void main(String[] arguments) throws Exception {
        System.exit(ToolRunner.run(new Generated("text", TextGenerator::lines), arguments));
    }

    /** The lines of one file, without end. */
    static Supplier<String> lines(SplittableRandom random) {
        return new Supplier<>() {
            private final String[] pool = new String[REMEMBERED];
            private int made;

            @Override
            public String get() {
                int choice = random.nextInt(1000);
                if (choice < SHARED) {
                    return SHARED_PHRASES[random.nextInt(STOCK)];
                }
                if (choice < SHARED + REPEATED && made > 0) {
                    return pool[random.nextInt(Math.min(made, REMEMBERED))];
                }
                String phrase = phrase(random);
                pool[made++ % REMEMBERED] = phrase;
                return phrase;
            }
        };
    }

    private static String phrase(SplittableRandom random) {
        StringBuilder line = new StringBuilder();
        int words = random.nextInt(SHORTEST_PHRASE, LONGEST_PHRASE + 1);
        for (int word = 0; word < words; word++) {
            line.append(word == 0 ? "" : " ").append(VOCABULARY[random.nextInt(WORDS)]);
        }
        return line.toString();
    }

    /** Words of two to four syllables. */
    private static String[] vocabulary(SplittableRandom random) {
        String[] words = new String[WORDS];
        for (int at = 0; at < WORDS; at++) {
            StringBuilder word = new StringBuilder();
            for (int syllables = random.nextInt(2, 5); syllables > 0; syllables--) {
                word.append(CONSONANTS.charAt(random.nextInt(CONSONANTS.length())));
                word.append(VOWELS.charAt(random.nextInt(VOWELS.length())));
            }
            words[at] = word.toString();
        }
        return words;
    }

    private static String[] stock(SplittableRandom random) {
        String[] phrases = new String[STOCK];
        for (int at = 0; at < STOCK; at++) {
            phrases[at] = phrase(random);
        }
        return phrases;
    }
}
