package io.tidepool.plane;

import static io.tidepool.plane.Samples.GIB;
import static io.tidepool.plane.Samples.sample;
import static org.assertj.core.api.Assertions.assertThat;

import java.util.Map;
import java.util.TreeMap;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.streaming.api.operators.KeyedProcessOperator;
import org.apache.flink.streaming.runtime.streamrecord.StreamRecord;
import org.apache.flink.streaming.util.KeyedOneInputStreamOperatorTestHarness;
import org.junit.After;
import org.junit.Before;
import org.junit.Test;

/** Sums by cluster, rack and job. */
public class TestSummary {

    private KeyedOneInputStreamOperatorTestHarness<String, Report, Summary> job;
    private long nowMs = 1_000_000;

    @Before
    public void start() throws Exception {
        job = new KeyedOneInputStreamOperatorTestHarness<>(
                new KeyedProcessOperator<>(new SummaryFunction(PolicyName.DYNIMS)), report -> "", Types.STRING);
        job.open();
        job.setProcessingTime(nowMs);
    }

    @After
    public void stop() throws Exception {
        job.close();
    }

    private static Report report(String node, String rack, String... jobs) {
        Reading sample = sample(node, "a", 1, 100 * GIB);
        sample.rack = rack;
        sample.stores[0].residentBytes = 7;
        sample.stores[0].capacityBytes = 8;
        sample.jobs = new JobUse[jobs.length];
        for (int i = 0; i < jobs.length; i++) {
            sample.jobs[i] = new JobUse(jobs[i], "anna", 5);
        }
        Report report = Report.of("plane1", "site1", node);
        report.take(sample);
        report.counts.samples = 1;
        report.counts.decisions = 1;
        report.ceilingBytes = 30;
        report.lagMs = 4;
        return report;
    }

    private void send(Report... reports) throws Exception {
        for (Report report : reports) {
            job.processElement(new StreamRecord<>(report));
        }
    }

    private Map<String, String> after(long spanMs) throws Exception {
        Map<String, String> texts = new TreeMap<>();
        job.getOutput().clear();
        nowMs += spanMs;
        job.setProcessingTime(nowMs);
        job.extractOutputValues().forEach(summary -> texts.put(summary.key, summary.text));
        return texts;
    }

    @Test
    public void nodesAreSummedUpByClusterRackAndJob() throws Exception {
        send(report("n0", "r1", "1"), report("n1", "r1", "1", "2", "2"), report("n2", ""));
        Map<String, String> texts = after(1000);
        assertThat(texts.keySet()).containsExactly("plane", "site1", "site1/job/1", "site1/job/2",
                "site1/rack/r1");
        assertThat(texts.get("site1/rack/r1")).isEqualTo("{\"form\":1,\"scope\":\"rack\","
                + "\"cluster\":\"site1\",\"rack\":\"r1\",\"plane\":\"plane1\",\"policy\":\"dynims\","
                + "\"at_ms\":1001000,\"span_ms\":1000,\"nodes\":2,\"silent_nodes\":0,"
                + "\"silent\":[],\"memory_total_bytes\":" + 256 * GIB
                + ",\"available_bytes\":" + 56 * GIB + ",\"demand_bytes\":" + 200 * GIB
                + ",\"resident_bytes\":14,\"capacity_bytes\":16,\"ceiling_bytes\":60,"
                + "\"job_bytes\":0,\"samples\":2,"
                + "\"repeated\":0,\"late\":0,\"garbage\":0,\"skewed\":0,\"foreign\":0,"
                + "\"incomplete\":0,\"refused\":0,\"trimmed\":0,\"decisions\":2,\"ceilings\":0,"
                + "\"decisions_per_s\":2,\"lag_ms\":4}");
        assertThat(texts.get("site1")).contains("\"nodes\":3,").contains("\"rack\":null");
        assertThat(texts.get("site1/job/1")).contains("\"nodes\":2,").contains("\"job_bytes\":10,");
        assertThat(texts.get("site1/job/2")).contains("\"nodes\":1,").contains("\"job_bytes\":10,");
    }

    @Test
    public void countsAreOfOneSpanAndValuesStay() throws Exception {
        send(report("n0", "r1"), report("n0", "r1"));
        Report late = Report.of("plane1", "site1", "n0");
        late.counts.late = 1;
        send(late);
        Report garbage = Report.of("plane1", "", "");
        garbage.counts.garbage = 3;
        send(garbage);
        Map<String, String> texts = after(1000);
        assertThat(texts.get("plane")).contains("\"garbage\":3,").contains("\"samples\":2,");
        assertThat(texts.get("site1")).contains("\"late\":1,").contains("\"samples\":2,")
                .contains("\"garbage\":0,").contains("\"nodes\":1,");
        texts = after(1000);
        assertThat(texts.get("plane")).contains("\"garbage\":0,").contains("\"lag_ms\":null");
        assertThat(texts.get("site1")).contains("\"late\":0,").contains("\"samples\":0,")
                .contains("\"ceiling_bytes\":30,").contains("\"nodes\":1,");
    }

    @Test
    public void silentNodesLeaveTheSumsAndAreCountedUntilTheyAreForgotten() throws Exception {
        send(report("n0", "r1", "1"), report("n1", "r2", "2"));
        after(5000);
        send(report("n0", "r1", "1"));
        Map<String, String> texts = after(5000);
        String oneIsSilent = "\"nodes\":1,\"silent_nodes\":1,\"silent\":[\"n1\"],";
        assertThat(texts.get("site1")).contains(oneIsSilent);
        assertThat(texts.get("plane")).contains(oneIsSilent);
        assertThat(texts.get("site1/rack/r1")).contains("\"silent_nodes\":0,\"silent\":[],");
        assertThat(texts.get("site1/rack/r2")).contains("\"nodes\":0,\"silent_nodes\":1,");
        assertThat(texts).doesNotContainKey("site1/job/2");
        texts = after(5000);
        assertThat(texts.get("site1")).contains("\"nodes\":0,\"silent_nodes\":2,")
                .contains("\"demand_bytes\":0,");
        send(report("n1", "r2"));
        assertThat(after(1000).get("site1")).contains("\"nodes\":1,\"silent_nodes\":1,");
        texts = after(NodeFunction.FORGET_MS);
        assertThat(texts.keySet()).containsExactly("plane");
        assertThat(texts.get("plane")).contains("\"nodes\":0,\"silent_nodes\":0,");
    }

    @Test
    public void namesOfSilentNodesAreBounded() throws Exception {
        for (int node = 0; node < 100; node++) {
            send(report("n" + (100 + node), ""));
        }
        after(5000);
        assertThat(after(5000).get("plane")).contains("\"nodes\":0,\"silent_nodes\":100,")
                .contains("\"silent\":[\"n100\",").contains(",\"n107\"],");
    }

    @Test
    public void aCeilingThatComesByItselfIsTakenOver() throws Exception {
        send(report("n0", "r1"));
        Report ceiling = Report.of("plane1", "site1", "n0");
        ceiling.ceilingBytes = 44;
        send(ceiling);
        Report sample = report("n0", "r1");
        sample.ceilingBytes = Reading.UNKNOWN;
        send(sample);
        assertThat(after(1000).get("site1")).contains("\"ceiling_bytes\":44,");
    }

    @Test
    public void groupsAreBounded() throws Exception {
        for (int node = 0; node < 100; node++) {
            String[] jobs = new String[64];
            for (int i = 0; i < jobs.length; i++) {
                jobs[i] = node + "-" + i;
            }
            send(report("n" + node, "r" + node, jobs));
        }
        assertThat(after(1000)).hasSize(SummaryFunction.GROUPS + 2).containsKey("site1");
        Map<String, String> texts = after(NodeFunction.FORGET_MS);
        assertThat(texts.keySet()).containsExactly("plane");
        for (int cluster = 0; cluster < 300; cluster++) {
            Report report = report("n0", "");
            report.cluster = "c" + cluster;
            send(report);
        }
        texts = after(1000);
        assertThat(texts).hasSize(SummaryFunction.CLUSTERS + 1);
        assertThat(texts.get("plane")).contains("\"nodes\":300,");
        assertThat(after(10_000)).hasSize(SummaryFunction.CLUSTERS + 1);
    }
}
