package io.tidepool.plane;

/** The policies of the plane. */
enum PolicyName {
    /** The law of the DynIMS paper with its faults corrected, for each node by itself. */
    DYNIMS("dynims"),
    /** The same as printed. */
    DYNIMS_PRINTED("dynims-printed"),
    /** Bytes of a site, shared by weights of users or jobs. */
    FAIR("fair"),
    /** Sums alone, no ceilings. */
    FOLLOW("follow");

    final String text;

    PolicyName(String text) {
        this.text = text;
    }

    boolean isLaw() {
        return this == DYNIMS || this == DYNIMS_PRINTED;
    }

    static PolicyName of(String text) {
        for (PolicyName policy : values()) {
            if (policy.text.equals(text)) {
                return policy;
            }
        }
        throw new IllegalArgumentException("no policy " + text
                + "; there are dynims, dynims-printed, fair and follow");
    }
}
