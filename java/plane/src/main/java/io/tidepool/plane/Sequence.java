package io.tidepool.plane;

/**
 * Which samples of a node are taken, by the start of its agent and the number within it; clocks
 * play no part. What is not newer than the last one that was taken is dropped, and so is a start
 * that another one followed.
 */
final class Sequence {

    /** Newer than all before. */
    static final int NEW = 0;
    /** The same again. */
    static final int REPEATED = 1;
    /** Not seen before, but something newer was; or of an earlier start. */
    static final int LATE = 2;

    /** Earlier starts that are remembered; what comes from one before them would count as new. */
    static final int STARTS = 32;

    private Sequence() {
    }

    static int take(NodeState state, String start, long number) {
        if (state.start == null) {
            begin(state, start, number);
            return NEW;
        }
        if (!state.start.equals(start)) {
            return other(state, start, number);
        }
        long ahead = number - state.lastNumber;
        if (ahead > 0) {
            state.seen = ahead < Long.SIZE ? state.seen << ahead | 1 : 1;
            state.lastNumber = number;
            return NEW;
        }
        long behind = -ahead;
        if (behind >= Long.SIZE || behind < 0) {
            return LATE;
        }
        boolean known = (state.seen >>> behind & 1) != 0;
        state.seen |= 1L << behind;
        return known ? REPEATED : LATE;
    }

    /** Starts anew within the present start: for a clock that was set back. */
    static void begin(NodeState state, String start, long number) {
        state.start = start;
        state.lastNumber = number;
        state.seen = 1;
    }

    private static int other(NodeState state, String start, long number) {
        for (String old : state.oldStarts) {
            if (old.equals(start)) {
                return LATE;
            }
        }
        int kept = Math.min(state.oldStarts.length, STARTS - 1);
        String[] starts = new String[kept + 1];
        starts[0] = state.start;
        System.arraycopy(state.oldStarts, 0, starts, 1, kept);
        state.oldStarts = starts;
        begin(state, start, number);
        return NEW;
    }
}
