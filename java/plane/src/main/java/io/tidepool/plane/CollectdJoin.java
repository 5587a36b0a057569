package io.tidepool.plane;

/**
 * Joins the six messages of one reading of collectd by their time. A reading is complete with the
 * sixth, or ends when one of a newer time comes; then one missing part follows from the memory of
 * the node, which does not change. With more missing, or before the first full reading, it is given
 * up.
 *
 * <p>One wrong time must not silence a node: a step of its clock, ahead or back, is taken only
 * after a lease in which no part was taken; and where nothing followed a time that was ahead, a
 * lease later the times before it go on, and so do those that came one after another for all of a
 * silent lease.
 */
final class CollectdJoin {

    /** How far a reading may be ahead, beside the time since the last one. */
    static final long AHEAD_MS = 5000;
    /** A clock that is set back by more than this starts anew; less is a late message. */
    static final long STEP_BACK_MS = 60_000;

    private static final int ALL = (1 << CollectdReader.PARTS.size()) - 1;

    /** What a message was. */
    enum Outcome { WAITING, REPEATED, LATE }

    /** The reading that the message completed, if it did; read it before the next call. */
    Reading complete;
    /** Whether it ended a reading that had to be given up. */
    boolean gaveUp;

    Outcome take(NodeState state, Reading part, long clockMs, long leaseMs) {
        complete = null;
        gaveUp = false;
        boolean isAgents = state.start != null && !state.start.isEmpty();
        if (isAgents && Math.abs(clockMs - state.takenMs) < leaseMs) {
            return Outcome.LATE;
        }
        long newestMs = state.joinedMs != 0 || isAgents ? state.joinedMs : state.lastAtMs;
        Outcome passed = order(state, part.atMs, newestMs, clockMs, leaseMs);
        if (passed != Outcome.WAITING) {
            return passed;
        }
        return add(state, part, clockMs);
    }

    /** Whether a part of that time is to be taken; others are late, or the same again. */
    private Outcome order(NodeState state, long atMs, long newestMs, long clockMs,
            long leaseMs) {
        long sinceMs = Math.abs(clockMs - Math.max(state.takenMs, state.partMs));
        boolean silent = sinceMs >= leaseMs;
        long aheadMs = atMs - newestMs;
        boolean known = newestMs != 0;
        boolean isFar = aheadMs > AHEAD_MS + Sequence.FASTER * sinceMs || aheadMs < -STEP_BACK_MS;
        if (known && aheadMs == 0 && state.joinedMs == 0) {
            return Outcome.REPEATED;
        }
        if (known && (isFar || aheadMs < 0)) {
            long most = Math.max(AHEAD_MS, 2 * leaseMs);
            boolean came = Sequence.goesOn(state, atMs, 0, most, clockMs, leaseMs);
            if (!silent || !came && !isFar && atMs <= state.sureMs) {
                return Outcome.LATE;
            }
            gaveUp = state.joinedMs != 0;
            state.joinedMs = 0;
        }
        boolean isNear = aheadMs >= 0 && aheadMs <= AHEAD_MS + 2 * sinceMs;
        if (!known || isFar || isNear) {
            state.sureMs = atMs;
        }
        return Outcome.WAITING;
    }

    private Outcome add(NodeState state, Reading part, long clockMs) {
        long atMs = part.atMs;
        if (atMs > state.joinedMs && state.joinedMs != 0) {
            finish(state, part);
        }
        if (atMs != state.joinedMs) {
            state.joinedMs = atMs;
            state.joinedParts = 0;
            state.joinedBytes = new long[CollectdReader.PARTS.size()];
        }
        int bit = 1 << part.part;
        if ((state.joinedParts & bit) != 0) {
            return Outcome.REPEATED;
        }
        state.partMs = clockMs;
        state.lateSinceMs = 0;
        state.joinedParts |= bit;
        state.joinedBytes[part.part] = part.partBytes;
        if (state.joinedParts == ALL) {
            finish(state, part);
        }
        return Outcome.WAITING;
    }

    private void finish(NodeState state, Reading part) {
        long sum = 0;
        for (long bytes : state.joinedBytes) {
            sum = Law.add(sum, bytes);
        }
        if (state.joinedParts == ALL) {
            state.fullBytes = sum;
        } else {
            int missing = ALL & ~state.joinedParts;
            if (Integer.bitCount(missing) != 1 || state.fullBytes < sum) {
                gaveUp = true;
                state.joinedMs = 0;
                return;
            }
            state.joinedBytes[Integer.numberOfTrailingZeros(missing)] = state.fullBytes - sum;
        }
        complete = reading(state, part);
        state.joinedMs = 0;
    }

    private static Reading reading(NodeState state, Reading part) {
        Reading reading = Reading.of(Reading.SAMPLE, part.recordMs);
        reading.cluster = part.cluster;
        reading.node = part.node;
        // The time in milliseconds rises, so it is the number.
        reading.number = state.joinedMs;
        reading.atMs = state.joinedMs;
        reading.totalBytes = state.fullBytes;
        reading.availableBytes = 0;
        for (int i = 0; i < state.joinedBytes.length; i++) {
            if (CollectdReader.isAvailable(i)) {
                reading.availableBytes = Law.add(reading.availableBytes, state.joinedBytes[i]);
            }
        }
        reading.demandBytes = reading.totalBytes - reading.availableBytes;
        return reading;
    }
}
