package io.tidepool.stores;

/**
 * A line that the controller sends: {@code NUMBER resize BYTES}. The number comes back with the
 * answer, so that one that was given up is not taken for that of a later command.
 */
record Command(long number, long capacityBytes) {

    private static final int WORDS = 3;

    /** Reads a line. */
    static Command of(String line) {
        String[] words = line.split(" ", -1);
        if (words.length != WORDS || !words[1].equals("resize")) {
            throw new IllegalArgumentException("no command: `" + line + "`");
        }
        return new Command(number(words[0], line), number(words[2], line));
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
