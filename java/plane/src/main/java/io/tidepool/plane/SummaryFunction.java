package io.tidepool.plane;

import java.util.ArrayList;
import java.util.Comparator;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.util.Collector;

/**
 * Sums by cluster, rack and job, once a second, of the last values of nodes that were heard from in
 * the last ten seconds. Others are counted as silent until they are forgotten. Nothing of it is in checkpoints: after a restart the sums are whole again
 * once each node has spoken.
 */
public final class SummaryFunction extends KeyedProcessFunction<String, Report, Summary> {

    /** Time between two summaries. */
    static final long PERIOD_MS = 1000;
    /** A node that is silent for so long is not summed up. */
    static final long SILENT_MS = 10_000;
    /** Most clusters with a summary of their own. */
    static final int CLUSTERS = 100;
    /** Most racks and jobs with a summary of their own, all clusters together. */
    static final int GROUPS = 2000;

    private static final long serialVersionUID = 1;

    private final PolicyName policy;

    /** Run of the job, as the last report has it. */
    private transient String plane;
    /** Counts that belong to no node. */
    private transient Report unnamed;
    private transient Map<String, Seen> nodes;
    private transient long lastMs;

    /** The last report of a node. */
    private static final class Seen {
        private Report last;
        private long heardMs;
    }

    SummaryFunction(PolicyName policy) {
        this.policy = policy;
    }

    @Override
    public void open(OpenContext context) {
        nodes = new HashMap<>();
        unnamed = new Report();
        lastMs = -1;
    }

    @Override
    public void processElement(Report report, Context context, Collector<Summary> out) {
        long nowMs = context.timerService().currentProcessingTime();
        if (lastMs < 0) {
            lastMs = nowMs;
            register(nowMs, context);
        }
        plane = report.plane;
        if (report.node.isEmpty()) {
            unnamed.counts.add(report.counts);
            return;
        }
        Seen seen = nodes.computeIfAbsent(report.cluster + '\n' + report.node, name -> new Seen());
        seen.heardMs = nowMs;
        Report before = seen.last;
        if (before == null) {
            seen.last = report;
            return;
        }
        Report newest = report.taken ? report : before;
        newest.ceilingBytes = report.ceilingBytes == Reading.UNKNOWN
                ? before.ceilingBytes : report.ceilingBytes;
        newest.lagMs = Math.max(before.lagMs, report.lagMs);
        Counts sum = newest == report ? before.counts : report.counts;
        newest.counts.add(sum);
        seen.last = newest;
    }

    private void register(long nowMs, Context context) {
        long nextMs = (nowMs / PERIOD_MS + 1) * PERIOD_MS;
        context.timerService().registerProcessingTimeTimer(nextMs);
    }

    @Override
    public void onTimer(long timeMs, OnTimerContext context, Collector<Summary> out) {
        long nowMs = context.timerService().currentProcessingTime();
        register(nowMs, context);
        if (lastMs < 0) {
            // A timer of before a restore: nothing was heard yet.
            lastMs = nowMs;
        }
        nodes.values().removeIf(seen -> nowMs - seen.heardMs >= NodeFunction.FORGET_MS);
        long spanMs = nowMs - lastMs;
        lastMs = nowMs;
        Sums all = new Sums();
        all.add(unnamed, 0);
        Map<Group, Sums> clusters = new TreeMap<>();
        Map<Group, Sums> groups = new TreeMap<>();
        List<Report> silent = new ArrayList<>();
        for (Seen seen : nodes.values()) {
            if (nowMs - seen.heardMs >= SILENT_MS) {
                silent.add(seen.last);
                continue;
            }
            all.add(seen.last, 0);
            Group cluster = new Group("cluster", seen.last.cluster, "");
            add(clusters, CLUSTERS, cluster, seen.last, 0);
            if (clusters.containsKey(cluster)) {
                addGroups(groups, seen.last);
            }
        }
        // Behind the others: those that are there come first where there are too many.
        for (Report node : silent) {
            all.addSilent(node);
            addSilent(clusters, CLUSTERS, new Group("cluster", node.cluster, ""), node);
            if (!node.rack.isEmpty()) {
                addSilent(groups, GROUPS, new Group("rack", node.cluster, node.rack), node);
            }
        }
        Map<Group, Sums> sums = new TreeMap<>(groups);
        sums.putAll(clusters);
        sums.put(new Group("plane", "", ""), all);
        sums.forEach((group, sum) -> {
            String text = sum.json(group.head(), plane, policy, nowMs, spanMs);
            out.collect(new Summary(group.key(), text));
        });
        unnamed = new Report();
        nodes.values().forEach(seen -> seen.last.forgetCounts());
    }

    private static void addGroups(Map<Group, Sums> groups, Report node) {
        if (!node.rack.isEmpty()) {
            add(groups, GROUPS, new Group("rack", node.cluster, node.rack), node, 0);
        }
        Map<String, Long> jobs = new TreeMap<>();
        for (JobUse job : node.jobs) {
            jobs.merge(job.name, job.bytes, Law::add);
        }
        jobs.forEach((job, bytes) ->
                add(groups, GROUPS, new Group("job", node.cluster, job), node, bytes));
    }

    /** Adds a node to a sum, if there is room for it. */
    private static void add(Map<Group, Sums> sums, int bound, Group group, Report node,
            long bytes) {
        Sums sum = sum(sums, bound, group);
        if (sum != null) {
            sum.add(node, bytes);
        }
    }

    private static void addSilent(Map<Group, Sums> sums, int bound, Group group, Report node) {
        Sums sum = sum(sums, bound, group);
        if (sum != null) {
            sum.addSilent(node);
        }
    }

    /** The sum of a group, or null for one that would be beyond the bound. */
    private static Sums sum(Map<Group, Sums> sums, int bound, Group group) {
        if (sums.size() < bound) {
            return sums.computeIfAbsent(group, name -> new Sums());
        }
        return sums.get(group);
    }

    /** What is summed up: the plane, a cluster, or a rack or a job of it. */
    private record Group(String scope, String cluster, String name) implements Comparable<Group> {

        @Override
        public int compareTo(Group other) {
            return Comparator.comparing(Group::scope).thenComparing(Group::cluster)
                    .thenComparing(Group::name).compare(this, other);
        }

        private String key() {
            return cluster.isEmpty() ? scope
                    : name.isEmpty() ? cluster : cluster + '/' + scope + '/' + name;
        }

        private JsonText head() {
            return new JsonText().open().field("form", 1).field("scope", scope)
                    .field("cluster", cluster.isEmpty() ? null : cluster)
                    .field(scope.equals("job") ? "job" : "rack", name.isEmpty() ? null : name);
        }
    }
}
