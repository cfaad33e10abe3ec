// A member of a share group with Kafka's KafkaShareConsumer: java -cp JARS ShareMember.java SERVERS TOPIC MODE UNTIL
//
// The group has the name of the topic. Each record is printed with what the member says of it, as JSON, and each poll
// that has records. It ends when UNTIL records are accepted or rejected; in the mode "watch" after UNTIL seconds.
//
//   accept   all of them
//   release  in the first delivery, then accept
//   reject   every third, accept the others
//   renew    the lock of each once, after RENEW_AFTER_MS, then accept after as long again
//   limit    accept, and take 7 records at a time at most (KIP-1206)
//   watch    accept what comes

import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.AcknowledgeType;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicIdPartition;
import org.apache.kafka.common.serialization.StringDeserializer;

public class ShareMember {
    static final long RENEW_AFTER_MS = 5000;

    public static void main(String[] args) throws Exception {
        String mode = args[2];
        int until = Integer.parseInt(args[3]);
        long end = System.nanoTime() + Duration.ofSeconds(mode.equals("watch") ? until : 120).toNanos();
        Properties settings = new Properties();
        settings.put("bootstrap.servers", args[0]);
        settings.put("group.id", args[1]);
        settings.put("share.acknowledgement.mode", "explicit");
        if (mode.equals("limit")) {
            settings.put("share.acquire.mode", "record_limit");
            settings.put("max.poll.records", "7");
        }
        int done = 0;
        Set<String> renewed = new HashSet<>();
        try (KafkaShareConsumer<String, String> member =
                new KafkaShareConsumer<>(settings, new StringDeserializer(), new StringDeserializer())) {
            member.subscribe(List.of(args[1]));
            while ((mode.equals("watch") || done < until) && System.nanoTime() < end) {
                var records = member.poll(Duration.ofMillis(500));
                if (records.isEmpty()) {
                    continue;
                }
                System.out.printf("{\"polled\": %d}%n", records.count());
                if (mode.equals("renew")) {
                    Thread.sleep(RENEW_AFTER_MS);
                }
                for (ConsumerRecord<String, String> record : records) {
                    AcknowledgeType type = decide(mode, record, renewed);
                    member.acknowledge(record, type);
                    done += type == AcknowledgeType.ACCEPT || type == AcknowledgeType.REJECT ? 1 : 0;
                    System.out.printf(
                            "{\"value\": \"%s\", \"partition\": %d, \"offset\": %d, \"count\": %d, \"ack\": \"%s\"}%n",
                            record.value(), record.partition(), record.offset(),
                            record.deliveryCount().orElse((short) -1), type);
                }
                System.out.flush();
                check(member.commitSync());
            }
        }
        System.exit(mode.equals("watch") || done >= until ? 0 : 1);
    }

    static AcknowledgeType decide(String mode, ConsumerRecord<String, String> record, Set<String> renewed) {
        if (mode.equals("release") && record.deliveryCount().orElse((short) 0) == 1) {
            return AcknowledgeType.RELEASE;
        }
        if (mode.equals("reject") && Integer.parseInt(record.value()) % 3 == 0) {
            return AcknowledgeType.REJECT;
        }
        if (mode.equals("renew") && renewed.add(record.partition() + "-" + record.offset())) {
            return AcknowledgeType.RENEW;
        }
        return AcknowledgeType.ACCEPT;
    }

    static void check(Map<TopicIdPartition, java.util.Optional<KafkaException>> results) {
        for (var result : results.values()) {
            if (result.isPresent()) {
                throw result.get();
            }
        }
    }
}
