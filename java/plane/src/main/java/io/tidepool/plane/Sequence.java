package io.tidepool.plane;

import java.util.Arrays;

/**
 * Which samples of a node are taken, by the start of its agent and the number within it. What is
 * not newer than the last one that was taken is dropped.
 *
 * <p>One forged sample must not silence a node. So the start that speaks keeps the node: another
 * one, new or retired, is taken only after a lease without a sample of it. The other way, a new
 * start at once, would give ceilings a lease earlier after a restart of the agent, and let anyone
 * who sends one sample a lease take the node away for good. Of a clone with the same name the one
 * that spoke first keeps it as well. Within a start a number may not be further ahead than time
 * allows; where one was all the same and none stood near it, a lease later the others go on, and
 * so do those that came one after another for all of a silent lease, however many forged ones stood
 * near each other. Time is the broker's, and no node's.
 */
final class Sequence {

    /** Newer than all before. */
    static final int NEW = 0;
    /** The same again. */
    static final int REPEATED = 1;
    /** Not seen before, but something newer was; too far ahead; or of another start. */
    static final int LATE = 2;

    /** Earlier starts that are remembered; what comes from one before them would count as new. */
    static final int STARTS = 32;
    /** Numbers that a sample may be ahead, beside those of the time since the last one. */
    static final long AHEAD = 1000;
    /** How much faster than time numbers may rise. */
    static final long FASTER = 10;

    /** Below all numbers. */
    private static final long NONE = -1;

    private Sequence() {
    }

    static int take(NodeState state, Reading sample, long clockMs, long leaseMs) {
        long sinceMs = Math.abs(clockMs - state.takenMs);
        boolean silent = sinceMs >= leaseMs;
        int taken = NEW;
        if (state.start == null) {
            begin(state, sample, NONE);
        } else if (!state.start.equals(sample.start)) {
            // That of collectd has been looked at before it was joined.
            taken = silent || sample.start.isEmpty() ? other(state, sample) : LATE;
        } else if (sample.start.isEmpty()) {
            begin(state, sample, NONE);
        } else {
            taken = next(state, sample, clockMs, leaseMs);
        }
        if (taken == NEW) {
            state.takenMs = clockMs;
            state.lateSinceMs = 0;
        }
        return taken;
    }

    /**
     * Notes one that is behind what was taken.
     *
     * @return whether such ones have come for a lease, each between {@code least} and {@code most}
     *     ahead of the one before
     */
    static boolean goesOn(NodeState state, long number, long least, long most, long clockMs,
            long leaseMs) {
        long ahead = number - state.lateNumber;
        if (state.lateSinceMs == 0 || ahead < least || ahead > most) {
            state.lateSinceMs = clockMs;
        }
        state.lateNumber = number;
        return clockMs - state.lateSinceMs >= leaseMs;
    }

    private static void begin(NodeState state, Reading sample, long sureNumber) {
        state.start = sample.start;
        state.lastNumber = sample.number;
        state.sureNumber = sureNumber;
        state.stepMs = sample.stepMs;
        state.seen = 1;
    }

    /** A sample of the present start. */
    private static int next(NodeState state, Reading sample, long clockMs, long leaseMs) {
        long sinceMs = Math.abs(clockMs - state.takenMs);
        // The step of the first sample: a later one cannot make room for itself.
        state.stepMs = state.stepMs > 0 ? state.stepMs : sample.stepMs;
        long steps = sinceMs / state.stepMs;
        long ahead = sample.number - state.lastNumber;
        if (ahead > AHEAD + FASTER * steps) {
            return LATE;
        }
        if (ahead > 0) {
            state.seen = ahead < Long.SIZE ? state.seen << ahead | 1 : 1;
            state.lastNumber = sample.number;
            if (ahead <= Long.SIZE + 2 * steps) {
                state.sureNumber = sample.number;
            }
            return NEW;
        }
        long behind = -ahead;
        if (behind >= Long.SIZE) {
            boolean came = goesOn(state, sample.number, 1, AHEAD, clockMs, leaseMs);
            if (sinceMs < leaseMs || !came && sample.number <= state.sureNumber) {
                return LATE;
            }
            begin(state, sample, Math.min(sample.number, state.sureNumber));
            return NEW;
        }
        boolean known = (state.seen >>> behind & 1) != 0;
        state.seen |= 1L << behind;
        return known ? REPEATED : LATE;
    }

    /** A sample of another start, where the present one is silent. */
    private static int other(NodeState state, Reading sample) {
        long hash = NameHash.of(sample.start);
        long sureNumber = NONE;
        int kept = 0;
        long[] starts = new long[state.oldStartHashes.length + 1];
        long[] numbers = new long[starts.length];
        for (int i = 0; i < state.oldStartHashes.length; i++) {
            if (state.oldStartHashes[i] == hash) {
                sureNumber = state.oldNumbers[i];
            } else {
                kept++;
                starts[kept] = state.oldStartHashes[i];
                numbers[kept] = state.oldNumbers[i];
            }
        }
        if (sample.number <= sureNumber) {
            return LATE;
        }
        starts[0] = NameHash.of(state.start);
        numbers[0] = state.sureNumber;
        state.oldStartHashes = Arrays.copyOf(starts, Math.min(kept + 1, STARTS));
        state.oldNumbers = Arrays.copyOf(numbers, state.oldStartHashes.length);
        begin(state, sample, sureNumber);
        return NEW;
    }
}
