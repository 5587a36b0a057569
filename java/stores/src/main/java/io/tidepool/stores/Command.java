package io.tidepool.stores;

import java.util.OptionalLong;

/**
 * A line that the controller sends: {@code NUMBER resize BYTES}, or {@code NUMBER limit}. The number
 * comes back with the answer, so that one that was given up is not taken for that of a later
 * command.
 *
 * @param capacityBytes what the store may hold; empty where its limit is asked for
 */
record Command(long number, OptionalLong capacityBytes) {

    private static final int WORDS = 3;

    /** Reads a line. */
    static Command of(String line) {
        String[] words = line.split(" ", -1);
        if (words.length == WORDS && words[1].equals("resize")) {
            OptionalLong bytes = OptionalLong.of(number(words[2], line));
            return new Command(number(words[0], line), bytes);
        }
        if (words.length == WORDS - 1 && words[1].equals("limit")) {
            return new Command(number(words[0], line), OptionalLong.empty());
        }
        throw new IllegalArgumentException("no command: `" + line + "`");
    }

    /** Has the store do it; answers the bytes that it may hold then. */
    long carryOut(ResizableStore store) throws Exception {
        return capacityBytes.isPresent() ? store.resize(capacityBytes.getAsLong()) : store.limit();
    }

    private static long number(String word, String line) {
        try {
            long number = Long.parseLong(word);
            if (number >= 0 && Character.isDigit(word.charAt(0))) {
                return number;
            }
        } catch (NumberFormatException wrong) {
            // Told below.
        }
        throw new IllegalArgumentException("`" + word + "` is no number: `" + line + "`");
    }
}
