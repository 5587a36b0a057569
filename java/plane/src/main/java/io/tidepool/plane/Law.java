package io.tidepool.plane;

/**
 * The control law of the DynIMS paper (dissertation, equation 4-1 and algorithm 4-1), as the policy
 * of that name on a node has it: the same numbers for the same readings, to the last bit. Each call
 * is one control interval.
 *
 * <p>The printed variant keeps two faults of the published algorithm: its dead band tests
 * {@code e >= 2 B} instead of {@code |e| >= 2 B}, so it never gives capacity back, and it rounds up
 * by one block, toward the store. The corrected one acts on {@code |e| >= 2 B} and rounds down to
 * whole blocks, toward the job.
 */
final class Law {

    /** Whether the faults of the printed algorithm are kept. */
    private final boolean printed;
    /** Gain λ. */
    private final double gain;
    /** Target share r0 of used memory. */
    private final double usedShare;

    Law(boolean printed, double gain, double usedShare) {
        this.printed = printed;
        this.gain = gain;
        this.usedShare = usedShare;
    }

    /**
     * The capacity of all stores of a node together after this reading. {@code capacityBytes} is
     * the one in force: the law's last word, or what the stores have where it has not spoken yet.
     */
    long decide(long capacityBytes, Reading reading) {
        long max = 0;
        long min = 0;
        long block = 1;
        for (StoreFacts store : reading.stores) {
            max = add(max, store.maxBytes);
            min = add(min, store.minBytes);
            block = Math.max(block, store.blockBytes);
        }
        min = Math.min(min, max);
        long capacity = clamp(capacityBytes, min, max);
        if (reading.availableBytes == Reading.UNKNOWN) {
            return capacity;
        }
        long used = Math.max(0, reading.totalBytes - reading.availableBytes);
        return clamp(next(capacity, used, reading.totalBytes, block), min, max);
    }

    /** Equation 4-1 with dead band and rounding; the capacity itself inside the dead band. */
    private long next(long capacity, long used, long total, long block) {
        double goal = usedShare * total;
        double error = used - goal;
        double weighed = printed ? error : Math.abs(error);
        if (goal <= 0.0 || weighed < 2.0 * block) {
            return capacity;
        }
        // v (r - r0) / r0 with r = v / M and V = r0 M is v (v - V) / V.
        double next = capacity - gain * used * error / goal;
        // Ends at the largest number, as the policy on the node does.
        long blocks = (long) Math.floor(Math.max(next, 0.0) / block);
        if (printed && next >= 0.0) {
            blocks = add(blocks, 1);
        }
        return blocks > Long.MAX_VALUE / block ? Long.MAX_VALUE : blocks * block;
    }

    /** A sum that stays at the largest number instead of overflowing; of numbers from 0 on. */
    static long add(long one, long other) {
        long sum = one + other;
        return sum < 0 ? Long.MAX_VALUE : sum;
    }

    static long clamp(long value, long min, long max) {
        return Math.max(min, Math.min(max, value));
    }
}
