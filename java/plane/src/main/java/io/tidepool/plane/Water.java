package io.tidepool.plane;

/**
 * Water filling: shares bytes by weights, each between its own min and max. What one cannot take
 * goes to the others by their weights. The same input gives the same shares, whatever came before.
 */
final class Water {

    /** Halvings of the range of the level; more than a double has digits. */
    private static final int STEPS = 64;

    private Water() {
    }

    /**
     * The shares, in the order of the weights. Their sum is above {@code totalBytes} only where the
     * mins alone are.
     */
    static long[] fill(long totalBytes, double[] weights, long[] mins, long[] maxes) {
        double low = 0;
        double high = 0;
        for (int i = 0; i < weights.length; i++) {
            high = weights[i] > 0 ? Math.max(high, maxes[i] / weights[i]) : high;
        }
        // Rounding of the level may leave the last one a byte short of its max.
        high = Math.nextUp(high);
        if (sum(high, weights, mins, maxes) <= totalBytes) {
            low = high;
        }
        for (int step = 0; step < STEPS && low < high; step++) {
            double level = low + (high - low) / 2;
            if (sum(level, weights, mins, maxes) <= totalBytes) {
                low = level;
            } else {
                high = level;
            }
        }
        long[] shares = new long[weights.length];
        for (int i = 0; i < shares.length; i++) {
            shares[i] = share(low, weights[i], mins[i], maxes[i]);
        }
        return shares;
    }

    private static long share(double level, double weight, long min, long max) {
        return Math.max(min, Math.min(max, (long) (level * weight)));
    }

    private static long sum(double level, double[] weights, long[] mins, long[] maxes) {
        long sum = 0;
        for (int i = 0; i < weights.length; i++) {
            sum = Law.add(sum, share(level, weights[i], mins[i], maxes[i]));
        }
        return sum;
    }
}
