package io.tidepool.plane;

import org.apache.flink.api.common.state.ListState;

/** What the instances of a function kept, put together for each of the instances that go on. */
final class Restored {

    private Restored() {
    }

    /**
     * The facts to go on with. Which node goes to which instance is known when it speaks; until
     * then each instance counts its part of them all, which is exact for one.
     */
    static PlaneFacts facts(ListState<PlaneFacts> kept, String newPlane, int instances)
            throws Exception {
        PlaneFacts facts = new PlaneFacts();
        for (PlaneFacts part : kept.get()) {
            facts.plane = facts.plane == null || part.plane.compareTo(facts.plane) < 0
                    ? part.plane : facts.plane;
            facts.nodes += part.nodes;
            facts.jobs += part.jobs;
            facts.forgottenNumber = Math.max(facts.forgottenNumber, part.forgottenNumber);
        }
        facts.nodes = (facts.nodes + instances - 1) / instances;
        facts.jobs = (facts.jobs + instances - 1) / instances;
        if (facts.plane == null) {
            facts.plane = newPlane;
        }
        return facts;
    }
}
