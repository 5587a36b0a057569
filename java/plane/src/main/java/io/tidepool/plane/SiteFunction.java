package io.tidepool.plane;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.MapState;
import org.apache.flink.api.common.state.MapStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.runtime.state.FunctionInitializationContext;
import org.apache.flink.runtime.state.FunctionSnapshotContext;
import org.apache.flink.streaming.api.checkpoint.CheckpointedFunction;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * The policy {@code fair}, by cluster: a site's total of store bytes, shared among its nodes once
 * in each interval. The weight of an owner (a user, or a job) is spread evenly over the nodes that
 * it is on; the weight of a node is the sum of what is spread to it.
 */
public final class SiteFunction extends KeyedProcessFunction<String, Reading, Ceiling>
        implements CheckpointedFunction {

    /** A node that is silent for so long has no share. */
    static final long SILENT_MS = 10_000;

    private static final long serialVersionUID = 1;
    /** Numbers that are left out after a restore, beside those that the time since would have. */
    private static final long MARGIN = 1000;

    private final Options options;
    private final String newPlane;

    private transient PlaneFacts facts;
    private transient ListState<PlaneFacts> kept;
    private transient MapState<String, SiteNode> nodes;
    private transient ValueState<Long> tickMs;
    private transient long openedMs;
    private transient boolean restored;
    private transient Set<String> moved;

    SiteFunction(Options options, String newPlane) {
        this.options = options;
        this.newPlane = newPlane;
    }

    @Override
    public void initializeState(FunctionInitializationContext context) throws Exception {
        kept = context.getOperatorStateStore().getUnionListState(
                new ListStateDescriptor<>("plane", TypeInformation.of(PlaneFacts.class)));
        facts = Restored.facts(kept, newPlane,
                getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks());
        restored = context.isRestored();
    }

    @Override
    public void snapshotState(FunctionSnapshotContext context) throws Exception {
        kept.update(List.of(facts));
    }

    @Override
    public void open(OpenContext context) {
        openedMs = -1;
        moved = new HashSet<>();
        nodes = getRuntimeContext().getMapState(new MapStateDescriptor<>("nodes", Types.STRING,
                TypeInformation.of(SiteNode.class)));
        tickMs = getRuntimeContext().getState(new ValueStateDescriptor<>("tick", Types.LONG));
    }

    @Override
    public void processElement(Reading sample, Context context, Collector<Ceiling> out)
            throws Exception {
        long nowMs = context.timerService().currentProcessingTime();
        openedMs = openedMs < 0 ? nowMs : openedMs;
        SiteNode node = nodes.get(sample.node);
        if (node == null) {
            node = new SiteNode();
            node.ceilingNumber = facts.forgottenNumber;
        }
        node.sample = sample;
        node.heardMs = nowMs;
        node.answered = false;
        nodes.put(sample.node, node);
        // One timer for each interval: those of the same time are one.
        register(nowMs, context);
    }

    private void register(long nowMs, Context context) {
        long nextMs = (nowMs / options.intervalMs + 1) * options.intervalMs;
        context.timerService().registerProcessingTimeTimer(nextMs);
    }

    @Override
    public void onTimer(long timeMs, OnTimerContext context, Collector<Ceiling> out)
            throws Exception {
        long nowMs = context.timerService().currentProcessingTime();
        openedMs = openedMs < 0 ? nowMs : openedMs;
        moveOn(context.getCurrentKey(), nowMs);
        List<SiteNode> live = live(nowMs);
        if (nodes.isEmpty()) {
            // Of a cluster without nodes nothing stays: anyone can name clusters.
            tickMs.clear();
            moved.remove(context.getCurrentKey());
            return;
        }
        register(nowMs, context);
        // The nodes that are not known yet go by ceilings of before, for as long as a lease.
        if (live.isEmpty() || nowMs - openedMs < options.leaseMs) {
            return;
        }
        long[] shares = shares(live);
        for (int i = 0; i < shares.length; i++) {
            answer(live.get(i), shares[i], nowMs, context, out);
        }
    }

    /** Goes on above all numbers since the checkpoint: one in each interval at most. */
    private void moveOn(String cluster, long nowMs) throws Exception {
        Long lastMs = tickMs.value();
        if (moved.add(cluster) && restored && lastMs != null) {
            long sent = Math.max(0, nowMs - lastMs) / options.intervalMs + MARGIN;
            for (Map.Entry<String, SiteNode> entry : nodes.entries()) {
                SiteNode node = entry.getValue();
                node.ceilingNumber += sent;
                nodes.put(entry.getKey(), node);
            }
            facts.forgottenNumber += sent;
        }
        tickMs.update(nowMs);
    }

    /** Nodes with a share, by name. Those that were silent for long are forgotten. */
    private List<SiteNode> live(long nowMs) throws Exception {
        TreeMap<String, SiteNode> live = new TreeMap<>();
        List<String> gone = new ArrayList<>();
        for (Map.Entry<String, SiteNode> entry : nodes.entries()) {
            SiteNode node = entry.getValue();
            long silentMs = nowMs - node.heardMs;
            if (silentMs >= NodeFunction.FORGET_MS) {
                facts.forgottenNumber = Math.max(facts.forgottenNumber, node.ceilingNumber);
                gone.add(entry.getKey());
            } else if (silentMs < SILENT_MS && node.sample.stores.length > 0) {
                live.put(entry.getKey(), node);
            }
        }
        for (String name : gone) {
            nodes.remove(name);
        }
        return new ArrayList<>(live.values());
    }

    private long[] shares(List<SiteNode> live) {
        double[] weights = weights(live);
        long[] mins = new long[live.size()];
        long[] maxes = new long[live.size()];
        long largest = 0;
        for (int i = 0; i < mins.length; i++) {
            for (StoreFacts store : live.get(i).sample.stores) {
                mins[i] = Law.add(mins[i], store.minBytes);
                maxes[i] = Law.add(maxes[i], store.ceilingBytes());
            }
            largest = Law.add(largest, maxes[i]);
        }
        long total = options.fairTotalBytes > 0 ? options.fairTotalBytes
                : (long) (largest * options.fairShare);
        long[] shares = Water.fill(total, weights, mins, maxes);
        for (int i = 0; i < shares.length; i++) {
            long block = 1;
            for (StoreFacts store : live.get(i).sample.stores) {
                block = Math.max(block, store.blockBytes);
            }
            if (shares[i] < maxes[i]) {
                shares[i] = Math.max(mins[i], shares[i] - shares[i] % block);
            }
        }
        return shares;
    }

    private double[] weights(List<SiteNode> live) {
        Map<String, Integer> spread = new HashMap<>();
        List<Set<String>> owners = new ArrayList<>();
        for (SiteNode node : live) {
            // In the order of names: a sum of fractions depends on it in its last digit.
            Set<String> own = new TreeSet<>();
            for (JobUse job : node.sample.jobs) {
                own.add(options.weights.owner(job));
            }
            owners.add(own);
            own.forEach(owner -> spread.merge(owner, 1, Integer::sum));
        }
        double[] weights = new double[live.size()];
        for (int i = 0; i < weights.length; i++) {
            for (String owner : owners.get(i)) {
                weights[i] += options.weights.of(owner) / spread.get(owner);
            }
            if (owners.get(i).isEmpty()) {
                weights[i] = options.weights.idle();
            }
        }
        return weights;
    }

    private void answer(SiteNode node, long share, long nowMs, OnTimerContext context,
            Collector<Ceiling> out) throws Exception {
        Reading sample = node.sample;
        long[] bytes = Split.of(share, sample.stores);
        long names = NameHash.of(Ceiling.names(sample.stores));
        boolean changed = !Arrays.equals(bytes, node.sentBytes) || names != node.sentNames;
        boolean renewed = 2 * Math.abs(nowMs - node.sentMs) >= options.leaseMs;
        // Only a node that spoke since the last time: one that is silent gets nothing.
        boolean spoke = !node.answered;
        node.answered = true;
        nodes.put(sample.node, node);
        if (!spoke || !changed && !renewed) {
            return;
        }
        node.ceilingNumber++;
        node.sentMs = nowMs;
        node.sentNames = names;
        node.sentBytes = bytes;
        nodes.put(sample.node, node);
        Ceiling ceiling = Ceiling.of(options, facts.plane, sample, node.ceilingNumber, bytes);
        ceiling.atMs = nowMs;
        out.collect(ceiling);
        Report report = Report.of(facts.plane, sample.cluster, sample.node);
        report.counts.ceilings = 1;
        report.counts.decisions = 1;
        report.ceilingBytes = Arrays.stream(bytes).reduce(0, Law::add);
        context.output(NodeFunction.REPORTS, report);
    }
}
