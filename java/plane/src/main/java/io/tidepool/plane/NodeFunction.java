package io.tidepool.plane;

import java.util.Arrays;
import java.util.List;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;
import org.apache.flink.util.OutputTag;

/**
 * All that is decided for a node by itself, by cluster and node: which samples are taken, the
 * capacity of its stores by the law, and when a ceiling goes out.
 *
 * <p>Whatever goes into a ceiling but its time comes from samples and state. So a sample that is
 * read again after a restore gives the same ceiling with the same number, and the node drops it.
 */
public final class NodeFunction extends KeyedProcessFunction<String, Reading, Ceiling>
        implements CheckpointedFunction {

    /** What became of each message. */
    static final OutputTag<Report> REPORTS =
            new OutputTag<>("reports", TypeInformation.of(Report.class));
    /** Samples that were taken, for a policy that looks at more than one node. */
    static final OutputTag<Reading> TAKEN =
            new OutputTag<>("taken", TypeInformation.of(Reading.class));

    /** A clock that is further off than this is counted. It is used all the same. */
    static final long SKEW_MS = 60_000;
    /** A node that is silent for so long is forgotten. */
    static final long FORGET_MS = 600_000;

    private static final long serialVersionUID = 1;
    /** Of the interval of the law; what is a little early is not left out. */
    private static final double WHOLE_INTERVAL = 0.75;

    private final Options options;
    private final String newPlane;

    private transient Law law;
    private transient CollectdJoin join;
    private transient PlaneFacts facts;
    private transient long limit;
    private transient long jobsLimit;
    private transient ValueState<NodeState> nodes;
    private transient ListState<PlaneFacts> kept;

    NodeFunction(Options options, String newPlane) {
        this.options = options;
        this.newPlane = newPlane;
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        kept = context.getOperatorStateStore().getUnionListState(
                new ListStateDescriptor<>("plane", TypeInformation.of(PlaneFacts.class)));
        facts = Restored.facts(kept, newPlane,
                getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks());
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        kept.update(List.of(facts));
    }

    @Override
    public void open(OpenContext context) {
        law = new Law(options.policy == PolicyName.DYNIMS_PRINTED, options.gain, options.usedShare);
        join = new CollectdJoin();
        int subtasks = getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks();
        limit = (options.maxNodes + subtasks - 1) / subtasks;
        jobsLimit = (options.maxAllJobs + subtasks - 1) / subtasks;
        nodes = getRuntimeContext().getState(
                new ValueStateDescriptor<>("node", TypeInformation.of(NodeState.class)));
    }

    @Override
    public void processElement(Reading reading, Context context, Collector<Ceiling> out)
            throws Exception {
        Report report = Report.of(facts.plane, reading.cluster, reading.node);
        if (reading.kind == Reading.GARBAGE || reading.kind == Reading.FOREIGN) {
            report.counts.garbage = reading.kind == Reading.GARBAGE ? 1 : 0;
            report.counts.foreign = reading.kind == Reading.FOREIGN ? 1 : 0;
            context.output(REPORTS, report);
            return;
        }
        long nowMs = context.timerService().currentProcessingTime();
        NodeState state = nodes.value();
        if (state == null) {
            if (facts.nodes >= limit) {
                Report refused = Report.of(facts.plane, "", "");
                refused.counts.refused = 1;
                context.output(REPORTS, refused);
                return;
            }
            facts.nodes++;
            state = new NodeState();
            state.ceilingNumber = facts.forgottenNumber;
            context.timerService().registerProcessingTimeTimer(nowMs + FORGET_MS);
        }
        state.heardMs = nowMs;
        // What is read again after a restore has the broker's time of before.
        long clockMs = reading.recordMs < 0 ? nowMs : reading.recordMs;
        Reading sample = reading.kind == Reading.PART
                ? joined(state, reading, clockMs, report) : reading;
        if (sample != null) {
            take(state, sample, clockMs, report, context, out);
        }
        nodes.update(state);
        if (sample != null || report.counts.repeated + report.counts.late
                + report.counts.incomplete > 0) {
            context.output(REPORTS, report);
        }
    }

    private Reading joined(NodeState state, Reading part, long clockMs, Report report) {
        CollectdJoin.Outcome outcome = join.take(state, part, clockMs, options.leaseMs);
        report.counts.repeated = outcome == CollectdJoin.Outcome.REPEATED ? 1 : 0;
        report.counts.late = outcome == CollectdJoin.Outcome.LATE ? 1 : 0;
        report.counts.incomplete = join.gaveUp ? 1 : 0;
        Reading sample = join.complete;
        if (sample != null) {
            // Nobody tells of its stores: the bounds are those of the options.
            sample.stores = new StoreFacts[] {new StoreFacts(options.storeName, options.maxBytes,
                    options.minBytes, options.maxBytes, options.blockBytes)};
        }
        return sample;
    }

    private void take(NodeState state, Reading sample, long clockMs, Report report,
            Context context, Collector<Ceiling> out) {
        long nowMs = context.timerService().currentProcessingTime();
        String before = state.start;
        int taken = Sequence.take(state, sample, clockMs, options.leaseMs);
        if (taken != Sequence.NEW) {
            report.counts.repeated += taken == Sequence.REPEATED ? 1 : 0;
            report.counts.late += taken == Sequence.LATE ? 1 : 0;
            return;
        }
        boolean first = !sample.start.equals(before);
        boolean ranOut = Math.abs(sample.atMs - state.lastAtMs) > options.leaseMs;
        if (!sample.start.isEmpty() && (first || ranOut)) {
            // What the law said last is not in force: its own word is the capacity of the sample.
            state.decided = false;
        }
        state.lastAtMs = sample.atMs;
        keepJobs(state, sample);
        report.take(sample);
        report.counts.samples = 1;
        report.counts.trimmed = sample.trimmed;
        report.counts.skewed = Math.abs(sample.atMs - nowMs) > SKEW_MS ? 1 : 0;
        report.lagMs = sample.recordMs < 0 ? Reading.UNKNOWN : Math.max(0, nowMs - sample.recordMs);
        if (options.policy == PolicyName.FAIR) {
            context.output(TAKEN, sample);
        } else if (options.policy.isLaw() && sample.stores.length > 0) {
            decide(state, sample, report);
            answer(state, sample, first, nowMs, report, out);
        }
    }

    /** Leaves out jobs that are too many over all nodes: each one is kept until the next sample. */
    private void keepJobs(NodeState state, Reading sample) {
        long room = Math.max(0, jobsLimit - Math.max(0, facts.jobs - state.jobs));
        int kept = (int) Math.min(sample.jobs.length, room);
        if (kept < sample.jobs.length) {
            sample.trimmed += sample.jobs.length - kept;
            sample.jobs = Arrays.copyOf(sample.jobs, kept);
        }
        facts.jobs = Math.max(0, facts.jobs - state.jobs) + kept;
        state.jobs = kept;
    }

    /** Asks the law once in each of its intervals. */
    private void decide(NodeState state, Reading sample, Report report) {
        double sinceMs = sinceMs(sample, state.decidedNumber, state.decidedAtMs);
        if (state.decided && sinceMs < WHOLE_INTERVAL * options.intervalMs) {
            return;
        }
        long capacity = state.capacityBytes;
        if (!state.decided) {
            capacity = 0;
            for (StoreFacts store : sample.stores) {
                capacity = Law.add(capacity, store.capacityBytes);
            }
        }
        state.capacityBytes = law.decide(capacity, sample);
        state.decided = true;
        state.decidedNumber = sample.number;
        state.decidedAtMs = sample.atMs;
        report.counts.decisions = 1;
    }

    /** Time since an earlier sample, by the node's clock, or its count where that stands still. */
    private static double sinceMs(Reading sample, long number, long atMs) {
        double countedMs = (double) Math.abs(sample.number - number) * sample.stepMs;
        return Math.max(countedMs, Math.abs(sample.atMs - atMs));
    }

    /** Sends the ceilings where they changed, or half of the lease has gone. */
    private void answer(NodeState state, Reading sample, boolean first, long nowMs, Report report,
            Collector<Ceiling> out) {
        long[] bytes = Split.of(state.capacityBytes, sample.stores);
        report.ceilingBytes = 0;
        for (long ceiling : bytes) {
            report.ceilingBytes = Law.add(report.ceilingBytes, ceiling);
        }
        long names = NameHash.of(Ceiling.names(sample.stores));
        boolean changed = !Arrays.equals(bytes, state.sentBytes) || names != state.sentNames;
        boolean renewed = 2 * sinceMs(sample, state.sentNumber, state.sentAtMs) >= options.leaseMs;
        if (!first && !changed && !renewed) {
            return;
        }
        state.ceilingNumber++;
        state.sentNumber = sample.number;
        state.sentAtMs = sample.atMs;
        state.sentNames = names;
        state.sentBytes = bytes;
        Ceiling ceiling = Ceiling.of(options, facts.plane, sample, state.ceilingNumber, bytes);
        ceiling.atMs = nowMs;
        report.counts.ceilings = 1;
        out.collect(ceiling);
    }

    @Override
    public void onTimer(long timeMs, OnTimerContext context, Collector<Ceiling> out)
            throws Exception {
        NodeState state = nodes.value();
        if (state == null) {
            return;
        }
        long untilMs = state.heardMs + FORGET_MS;
        if (context.timerService().currentProcessingTime() < untilMs) {
            context.timerService().registerProcessingTimeTimer(untilMs);
            return;
        }
        facts.nodes = Math.max(0, facts.nodes - 1);
        facts.jobs = Math.max(0, facts.jobs - state.jobs);
        facts.forgottenNumber = Math.max(facts.forgottenNumber, state.ceilingNumber);
        nodes.clear();
    }
}
