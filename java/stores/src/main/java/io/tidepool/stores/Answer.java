package io.tidepool.stores;

import java.util.Locale;

/** Lines that the controller reads. */
final class Answer {

    private static final int WORDS_MAX = 400;

    /** What kind of failure it was; the controller says what to do about each. */
    enum Failure {
        /** The store did not answer. */
        UNAVAILABLE,
        /** The store did not let us. */
        DENIED,
        /** What was asked for cannot be. */
        INVALID,
        /** The store cannot do it. */
        UNSUPPORTED,
        /** The class path lacks something, or has it in a version of another form. */
        CLASSES
    }

    private Answer() {
    }

    /** The first line, when the classes of the store were found. */
    static String ready(String version) {
        return "ready " + version;
    }

    static String done(long number, long capacityBytes) {
        return number + " done " + capacityBytes;
    }

    static String failed(long number, Throwable cause) {
        return number + " failed " + kind(cause).name().toLowerCase(Locale.ROOT) + " "
                + words(cause);
    }

    /** Instead of the first line. */
    static String refused(Throwable cause) {
        return "refused " + kind(cause).name().toLowerCase(Locale.ROOT) + " " + words(cause);
    }

    /** By words where the classes differ between versions and packagings of the same client. */
    private static Failure kind(Throwable thrown) {
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            if (cause instanceof LinkageError || cause instanceof ReflectiveOperationException) {
                return Failure.CLASSES;
            }
            String text = cause.toString();
            if (cause instanceof IllegalArgumentException || text.contains("does not exist")) {
                return Failure.INVALID;
            }
            if (cause instanceof UnsupportedOperationException
                    || text.contains("UNIMPLEMENTED")) {
                return Failure.UNSUPPORTED;
            }
            if (text.contains("AccessControlException") || text.contains("PERMISSION_DENIED")
                    || text.contains("UNAUTHENTICATED") || text.contains("Unauthenticated")) {
                return Failure.DENIED;
            }
        }
        return Failure.UNAVAILABLE;
    }

    /** One line: the first of each cause, without what is said twice. */
    private static String words(Throwable thrown) {
        StringBuilder words = new StringBuilder();
        for (Throwable cause = thrown; cause != null; cause = cause.getCause()) {
            String first = cause.toString().lines().findFirst().orElse("").strip();
            if (words.indexOf(first) < 0) {
                words.append(words.isEmpty() ? "" : "; ").append(first);
            }
        }
        return words.length() <= WORDS_MAX ? words.toString() : words.substring(0, WORDS_MAX);
    }
}
